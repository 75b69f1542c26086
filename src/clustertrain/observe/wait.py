"""`submit --wait`: follows a run through its restarts until it is over, and prints each change."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from clustertrain.errors import EXIT_FAILED, ClusterError, ClusterTrainError, StorageError
from clustertrain.observe.status import Status, StatusOf
from clustertrain.observe.status_json import StoredStatus
from clustertrain.observe.tables import finish, print_table, status_rows
from clustertrain.run_files.claims import heartbeat_period_s
from clustertrain.run_files.command_line import CommandLine
from clustertrain.run_files.folder.run_dir import RunDir

_SURE_S = 2.0

T = TypeVar("T", Status, StoredStatus)


def wait_for_end(
    name: str,
    status_of: Callable[[], T],
    echo: Callable[[str], None],
    poll_s: float,
    *,
    passing: tuple[type[ClusterTrainError], ...] = (StorageError, ClusterError),
    patience_s: float = math.inf,
    timeout_s: float | None = None,
    sure_after: int = 2,
) -> T:
    """Print each change of a run's state until the run is over; returns its last status.

    Args:
        passing: the errors of a storage or a cluster that does not answer: warnings for `patience_s`, because
            the run may continue.
        sure_after: how often in a row the run has to be over, unless its standing is settled: a job that is
            being requeued may look for a moment as if it had ended.

    Raises:
        TimeoutError: the run has not ended within `timeout_s`.
        ClusterTrainError: there was no answer for longer than `patience_s`; any other error at once.
    """
    began = answered = time.monotonic()
    shown, over, is_settled = "", 0, False
    while True:
        try:
            status = status_of()
        except passing as error:
            if time.monotonic() - answered > patience_s:
                raise
            line = f"warning: {error}"
        else:
            answered = time.monotonic()
            line, standing = status.told()
            over, is_settled = over + 1 if standing.over else 0, standing.is_settled
        if line != shown:
            echo(shown := line)
        if over == sure_after or is_settled:
            return status
        if timeout_s is not None and not over and time.monotonic() - began > timeout_s:
            raise TimeoutError(f"{name} has not ended within {timeout_s:g} s: {line}")
        time.sleep(min(poll_s, _SURE_S) if over else poll_s)


def follow_to_its_end(
    run: RunDir, status_of: StatusOf, command: CommandLine, echo: Callable[[str], None]
) -> int:
    """Follow a submitted run, print its result, and return its exit code. `command` submitted it."""
    with continues(run.name, command, echo):
        status = wait_for_end(run.name, lambda: status_of(run), echo, heartbeat_period_s(run))
    if status.result is not None:
        return finish(run, status.result, command)
    print_table(status_rows(status))
    return EXIT_FAILED if status.exit_code is None else status.exit_code


@contextmanager
def continues(name: str, command: CommandLine, echo: Callable[[str], None]) -> Iterator[None]:
    """Say that the run continues if its user interrupts the wait for its end."""
    try:
        yield
    except KeyboardInterrupt:
        echo(f"{name} continues; `{command.of('status')}` shows its state")
        raise
