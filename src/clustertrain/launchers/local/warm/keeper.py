"""The program that keeps a Ray ready: `python -m clustertrain.launchers.local.warm.keeper FOLDER IDLE_S`.

It ends when there has been no run for IDLE_S seconds, and its spare driver ends with it. A run that has taken
one goes on.
"""

from __future__ import annotations

import fcntl
import re
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from clustertrain.errors import ClusterError, ClusterTrainError
from clustertrain.job.file import load_job
from clustertrain.job.model import Job
from clustertrain.launchers.local.warm.messages import (
    JOB_FILE,
    SOCKET,
    Answer,
    Ask,
    check_peer,
    receive,
    send,
)
from clustertrain.launchers.local.warm.start import start_of
from clustertrain.launchers.one_host import driver_environment, world_sizes_here
from clustertrain.supervise.early_driver import EarlyDriver, StartFolder
from clustertrain.supervise.guardian import descendants
from clustertrain.units import duration_text, size_text

_ASKS_WITHIN_S = 5.0


class Keeper:
    """Keeps a spare driver for the next run of this job, or of one with the same start."""

    def __init__(self, job: Job, idle_s: float, listens: socket.socket) -> None:
        self._job, self._idle_s, self._listens = job, idle_s, listens
        self._world_size = world_sizes_here(job)[-1]
        self._start = start_of(job, self._world_size)
        self._spare: EarlyDriver | None = None
        self._runs: dict[socket.socket, EarlyDriver] = {}

    def keep(self) -> None:
        """Keep it until nobody wants it.

        Raises:
            ClusterError: it has ended.
        """
        try:
            self._start_spare()
            idle_since, wants_end = time.monotonic(), False
            while not wants_end and (self._runs or time.monotonic() < idle_since + self._idle_s):
                spare = self._spare.process if self._spare is not None else None
                fds: list[socket.socket | int] = [spare.fd] if spare is not None else []
                within_s = None if self._runs else max(0.0, idle_since + self._idle_s - time.monotonic())
                ready, _, _ = select.select([self._listens, *self._runs, *fds], [], [], within_s)
                if spare is not None and spare.fd in ready:
                    raise ClusterError(f"The driver for the next run has ended:\n{spare.last_lines()}")
                for run in self._runs.keys() & ready:
                    self._is_over(run)
                if self._listens in ready:
                    wants_end = self._answer()
                if ready:
                    idle_since = time.monotonic()
        finally:
            if self._spare is not None:
                self._spare.discard()

    def _start_spare(self) -> None:
        environment = partial(driver_environment, self._job)
        self._spare = EarlyDriver.start(self._job, "local", self._world_size, environment, is_spare=True)

    def _is_over(self, run: socket.socket) -> None:
        """Start the next spare driver, now that the run does not need the processors."""
        run.close()
        self._runs.pop(run).process.end()  # it has ended, or does so now: this closes our descriptors
        if self._spare is None:
            self._start_spare()

    def _answer(self) -> bool:
        """Answer a connection. Returns whether it wants the end."""
        connection, _ = self._listens.accept()
        with suppress(OSError, ClusterTrainError):  # it has ended, or may not ask
            connection.settimeout(_ASKS_WITHIN_S)
            check_peer(connection)
            ask, _ = receive(connection, Ask)
            if ask.what == "down":
                return True
            if ask.what == "take":
                self._hand_over(connection, ask.start)
            else:
                send(connection, self._state(ask.start))
        if connection not in self._runs:
            connection.close()
        return False

    def _hand_over(self, connection: socket.socket, start: dict[str, str]) -> None:
        differs, spare = self._differs_from(start), self._spare
        if differs or spare is None:
            send(connection, Answer(differs=differs))
            return
        send(connection, Answer(folder=str(spare.folder)), spare.process.descriptors)
        spare.process.let_go()
        self._runs[connection], self._spare = spare, None

    def _differs_from(self, start: dict[str, str]) -> list[str]:
        names = start.keys() | self._start.keys()
        return sorted(name for name in names if start.get(name) != self._start.get(name))

    def _state(self, start: dict[str, str]) -> Answer:
        spare = self._spare
        is_ready = spare is not None and StartFolder(spare.folder).ready.exists()
        resources = self._job.resources
        gpus = f" and {resources.gpus_per_worker:g} GPUs" if resources.gpus_per_worker else ""
        kept_for = f"{self._world_size} workers with {resources.cpus_per_worker:g} CPUs{gpus} each"
        memory_bytes = _memory_bytes(spare.process.pid) if spare is not None and is_ready else 0
        state = "ready" if is_ready else "in use by a run" if self._runs else "starting"
        text = (
            f"Kept for runs of {kept_for}: {state}, {size_text(memory_bytes)} of memory. "
            f"Without a run it ends after {duration_text(self._idle_s)}; `clustertrain down` ends it now."
        )
        return Answer(is_ready or bool(self._runs), text, self._differs_from(start))


def _memory_bytes(guardian: int) -> int:
    return sum(map(_pss_bytes, [guardian, *descendants(guardian)]))


def _pss_bytes(pid: int) -> int:
    """The memory of a process, its share of what it has in common with others."""
    with suppress(OSError):  # it has ended
        rows = Path(f"/proc/{pid}/smaps_rollup").read_text()
        return sum(int(kib) for kib in re.findall(r"^Pss: +(\d+) kB", rows, re.MULTILINE)) * 1024
    return 0


def main(folder_text: str, idle_text: str) -> None:
    """Keep Ray for the job whose file is in the folder."""
    path = Path(folder_text, SOCKET)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with path.with_name("lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ClusterError("Another `clustertrain up` is starting or ending.\nTry again.") from None
        path.unlink(missing_ok=True)  # of one that was killed
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listens:
            listens.bind(str(path))
            listens.listen()
            try:
                Keeper(load_job(path.with_name(JOB_FILE)), float(idle_text), listens).keep()
            finally:
                path.unlink(missing_ok=True)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except ClusterTrainError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
