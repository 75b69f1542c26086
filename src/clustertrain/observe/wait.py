"""`submit --wait`: follows a run through its restarts until it is over, and prints each change."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypeVar

from clustertrain.errors import EXIT_FAILED, ClusterError, StorageError
from clustertrain.observe.status import Status, StatusOf
from clustertrain.observe.tables import finish, print_table, status_rows
from clustertrain.run.claims import heartbeat_period_s
from clustertrain.run.command_line import CommandLine
from clustertrain.run.folder import RunDir

_SURE_AFTER = 2
_SURE_S = 2.0

T = TypeVar("T")


def wait_for_end(
    name: str,
    status_of: Callable[[], T],
    told: Callable[[T], tuple[str, bool]],
    echo: Callable[[str], None],
    poll_s: float,
    *,
    patience_s: float = math.inf,
    timeout_s: float | None = None,
) -> T:
    """Print each change of a run's state until the run is over; returns its last status.

    Args:
        told: the line for a status, and whether the run is over.
        patience_s: how long a storage or a cluster that does not answer is a warning: the run may continue.

    Raises:
        TimeoutError: the run has not ended within `timeout_s`.
        StorageError, ClusterError: there was no answer for longer than `patience_s`.
    """
    began = answered = time.monotonic()
    shown, over = "", 0
    while True:
        try:
            status = status_of()
        except (StorageError, ClusterError) as error:
            if time.monotonic() - answered > patience_s:
                raise
            line = f"warning: {error}"
        else:
            answered = time.monotonic()
            line, is_over = told(status)
            # A job that is being requeued may look for a moment as if it had ended.
            over = over + 1 if is_over else 0
        if line != shown:
            echo(shown := line)
        if over == _SURE_AFTER:
            return status
        if timeout_s is not None and not over and time.monotonic() - began > timeout_s:
            raise TimeoutError(f"{name} has not ended within {timeout_s:g} s: {line}")
        time.sleep(min(poll_s, _SURE_S) if over else poll_s)


def follow_to_its_end(
    run: RunDir, status_of: StatusOf, command: CommandLine, echo: Callable[[str], None]
) -> int:
    """Follow a submitted run, print its result, and return its exit code. `command` submitted it."""
    try:
        status = wait_for_end(run.name, lambda: status_of(run), _told, echo, heartbeat_period_s(run))
    except KeyboardInterrupt:
        echo(f"{run.name} continues; `{command.of('status')}` shows its state")
        raise
    if status.result is not None:
        return finish(run, status.result, command)
    print_table(status_rows(status))
    return EXIT_FAILED if status.exit_code is None else status.exit_code


def _told(status: Status) -> tuple[str, bool]:
    """`running: attempt 2, SLURM job 12 on node[1-2]`, and whether the run is over."""
    attempt = f"attempt {status.attempt.n}" if status.attempt and status.state != "queued" else ""
    why = status.standing.text or status.runner or ""
    details = ", ".join(part for part in (attempt, why, status.note or "") if part)
    return f"{status.state}: {details}" if details else status.state, status.standing.over
