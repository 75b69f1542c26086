"""`submit --wait`: follows a run through its restarts until it is over, and prints each change."""

from __future__ import annotations

import time
from collections.abc import Callable

from clustertrain.errors import EXIT_FAILED, StorageError
from clustertrain.observe.status import Status, StatusOf
from clustertrain.observe.tables import finish, print_table, status_rows
from clustertrain.run.claims import heartbeat_period_s
from clustertrain.run.command_line import CommandLine
from clustertrain.run.folder import RunDir

_SURE_AFTER = 2


def follow(run: RunDir, status_of: StatusOf, echo: Callable[[str], None]) -> Status:
    """The status of the run at its end.

    If the storage or the scheduler is unreachable, it prints a warning and waits: the run may continue.
    """
    shown, over = "", 0
    while True:
        try:
            status = status_of(run)
        except StorageError as error:
            line = f"warning: {error}"
        else:
            line = _line(status)
            # A job that is being requeued may look for a moment as if it had ended.
            over = over + 1 if status.standing.over else 0
        if line != shown:
            echo(line)
            shown = line
        if over == _SURE_AFTER:
            return status
        time.sleep(heartbeat_period_s(run))


def follow_to_its_end(
    run: RunDir, status_of: StatusOf, command: CommandLine, echo: Callable[[str], None]
) -> int:
    """Follow a submitted run, print its result, and return its exit code. `command` submitted it."""
    try:
        status = follow(run, status_of, echo)
    except KeyboardInterrupt:
        echo(f"{run.name} continues; `{command.of('status')}` shows its state")
        raise
    if status.result is not None:
        return finish(run, status.result, command)
    print_table(status_rows(status))
    return EXIT_FAILED if status.exit_code is None else status.exit_code


def _line(status: Status) -> str:
    """`running: attempt 2, SLURM job 12 on node[1-2]`"""
    attempt = f"attempt {status.attempt.n}" if status.attempt and status.state != "queued" else ""
    why = status.standing.text or status.runner or ""
    details = ", ".join(part for part in (attempt, why, status.note or "") if part)
    return f"{status.state}: {details}" if details else status.state
