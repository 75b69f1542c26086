"""The other side of the keeper: `clustertrain up` and `down`, and the run that takes what it keeps."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from clustertrain import variables
from clustertrain.errors import ClusterError, ClusterTrainError, JobError
from clustertrain.job.file import dump_job
from clustertrain.job.model import Job
from clustertrain.job.references import check_set
from clustertrain.launchers.check import check_training_installed
from clustertrain.launchers.local.warm.messages import (
    JOB_FILE,
    LOG,
    Answer,
    Ask,
    check_peer,
    check_private,
    connect,
    keeper_folder,
    receive,
    send,
)
from clustertrain.launchers.local.warm.start import start_of
from clustertrain.launchers.one_host import ray_address, world_sizes_here
from clustertrain.launchers.shell import start_in_background
from clustertrain.node.processes import process_of
from clustertrain.supervise.early_driver import EarlyDriver
from clustertrain.waiting import wait_until

_ENDS_WITHIN_S = 60.0
_POLL_S = 0.2
_MOST_NAMES = 4

Echo = Callable[[str], None]


def take(job: Job, world_size: int, at_end: ExitStack, echo: Echo) -> EarlyDriver | None:
    """The spare driver of the keeper if there is one that fits. If there is a keeper and it does not fit,
    prints why. `at_end`, of the run, closes the connection: then the keeper starts the next one."""
    try:
        connection = None if ray_address() else connect()
        if connection is None:
            return None
        send(connection, Ask("take", start_of(job, world_size)))
        answer, fds = receive(connection, Answer)
        spare = EarlyDriver.adopt(Path(answer.folder), fds) if answer.folder else None
    except (OSError, ClusterTrainError) as error:
        echo(f"note: the Ray of `clustertrain up` cannot be used, and this run starts its own: {error}")
        return None
    if spare is not None:
        at_end.callback(connection.close)
        return spare
    connection.close()
    why = f"was {_other_start(answer)}" if answer.differs else "is in use by another run"
    echo(f"note: the Ray of `clustertrain up` {why}. This run starts its own.")
    return None


def _other_start(answer: Answer) -> str:
    shown = ", ".join(answer.differs[:_MOST_NAMES]) + (", …" if len(answer.differs) > _MOST_NAMES else "")
    return f"started with another value of: {shown}"


def up(job: Job, idle_s: float, echo: Echo) -> None:
    """Start the keeper, and wait until Ray is ready; or say what the one keeps that is there. Ctrl-C ends the
    keeper that is starting.

    Raises:
        ClusterTrainError: it cannot start here, or the spare driver has ended.
    """
    _check_possible(job)
    start = start_of(job, world_sizes_here(job)[-1])
    if (answer := _state(start)) is not None:
        echo(f"It is up already. {answer.text}")
        if answer.differs:
            echo(f"It was {_other_start(answer)}. A run of this job starts its own Ray.")
            echo("For one that it can use: `clustertrain down`, then `clustertrain up`.")
        return
    started_s, folder = time.monotonic(), keeper_folder()
    folder.mkdir(mode=0o700, exist_ok=True)
    check_private(folder)
    (folder / JOB_FILE).write_bytes(dump_job(job, defaults=True).encode())
    log = folder / LOG
    log.write_bytes(b"")
    keeper = "clustertrain.launchers.local.warm.keeper"
    command = [sys.executable, "-P", "-m", keeper, str(folder), str(idle_s)]
    pid = start_in_background(command, log, environ=os.environ)
    try:
        while (answer := _state(start)) is None or not answer.is_up:
            if answer is None and process_of(pid) is None:
                printed = log.read_text(errors="replace").strip().removeprefix("error: ")
                raise ClusterError(printed or f"Process {pid} was killed.")
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        raise
    echo(f"Ready after {time.monotonic() - started_s:.1f} s. {answer.text}")


def down(echo: Echo) -> None:
    """End the keeper and what it keeps, and wait for its end.

    Raises:
        ClusterError: it does not end.
    """
    connection = connect()
    if connection is None:
        echo("Nothing is up.")
        return
    with connection, suppress(ConnectionError):  # it is ending
        pid = check_peer(connection)
        send(connection, Ask("down"))
    if not wait_until(lambda: process_of(pid) is None, _ENDS_WITHIN_S, _POLL_S):
        raise ClusterError(
            f"Process {pid}, which keeps Ray, has been asked to end and runs after {_ENDS_WITHIN_S:g} s.\n"
            f"Wait, or `kill -9 {pid}`: what it keeps ends with it."
        )
    echo("Ended.")


def _check_possible(job: Job) -> None:
    check_training_installed("up")
    check_set(job.start_texts, os.environ)
    for name in ("RAY_ADDRESS", variables.RAY):
        if os.environ.get(name):
            raise JobError(
                f"{name}={os.environ[name]}: with it no Ray can be started before a run.\nUnset {name}."
            )


def _state(start: dict[str, str]) -> Answer | None:
    """What the keeper says of this start; None if there is none, or it is starting or ending."""
    try:
        if (connection := connect()) is None:
            return None
        with connection:
            send(connection, Ask("state", start))
            return receive(connection, Answer)[0]
    except (ConnectionError, TimeoutError):
        return None
