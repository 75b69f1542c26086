"""The loop that runs beside a driver, in the process that started it.

It shows the run's events and the output of rank 0, and ends the run if its policy decides so.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Sequence
from typing import Protocol

from clustertrain.errors import EXIT_STORAGE, ClusterTrainError, StorageError
from clustertrain.observe.display import Display
from clustertrain.observe.screen import Screen
from clustertrain.run_files.command_line import UNKNOWN, CommandLine
from clustertrain.run_files.folder.run_dir import Attempt
from clustertrain.run_files.job_diff import run_beside
from clustertrain.run_files.records.requests import StopRequest
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.result import failed, write_result
from clustertrain.supervise.driver_process import DriverStarts
from clustertrain.supervise.guardian import become_subreaper, kill_descendants
from clustertrain.supervise.process import Guarded

_POLL_S = 0.1


class EndPolicy(Protocol):
    """Decides when a run ends although its driver still runs.

    Each launcher has its own reasons: signals, the scheduler, lost nodes. `is_training`: the group of workers
    has started.
    """

    def end_now(self, is_training: bool) -> Result | None:
        """Return the result to end the run with at once, or None to continue.

        The loop calls it in each round. It may request a stop.
        """

    def after_driver(self, is_training: bool) -> Result | None:
        """Return the result if the driver wrote none and the launcher knows the cause; None otherwise.

        The loop calls it when the driver has ended by itself.
        """


def supervise(
    attempt: Attempt,
    start_driver: Callable[[], Guarded],
    policy: EndPolicy,
    screen: Screen,
    *,
    command: CommandLine = UNKNOWN,
    beside: Sequence[Guarded] = (),
    owns_process: bool = True,
) -> Result:
    """Run until the driver has ended or `policy` ends the run, end all its processes, and write the result.

    A driver that was killed, or whose Ray has ended, is started again. An error in the loop itself, such as a
    storage error, ends the run as failed.

    Args:
        start_driver: starts the driver; called again for each start.
        command: the command that started the run, for messages.
        beside: other processes of the attempt on this node, ended after the driver.
        owns_process: whether all that this process has started belongs to the run. In a user's program it
            does not, so nothing but the driver is ended here.
    """
    if owns_process:
        become_subreaper()
    starts, display, result = DriverStarts(attempt, start_driver), None, None
    try:
        display = Display(attempt, screen, command)
        while result is None:
            result = _supervise_once(starts, policy, display, is_alone=owns_process and not beside)
    except ClusterTrainError as error:
        result = failed(attempt, str(error), error.exit_code)
    except OSError as error:  # such as an event on a disk that is read-only now or, without a name, full
        result = failed(attempt, f"{error.filename or attempt.path}: {error.strerror}.", EXIT_STORAGE)
    finally:
        for process in beside:
            process.end()
        if owns_process:
            kill_descendants()  # finds processes only if both guardians were killed
    result = write_result(attempt, result)
    if display is not None:
        display.update(is_last=True)
    if result.already_finished:
        screen.echo(
            f"{attempt.run.name} is already finished; nothing was trained, and its records are unchanged.\n"
            f"A new run beside it: `{run_beside(attempt.run, command)}`"
        )
    return result


def _supervise_once(
    starts: DriverStarts, policy: EndPolicy, display: Display, *, is_alone: bool
) -> Result | None:
    """Start the driver once, and return the result, or None if there has to be another start.

    `is_alone`: this process has started nothing else.
    """
    driver = starts.start()
    try:
        decided = _until_the_end(driver, policy, display)
    finally:
        driver.end()
    if is_alone:
        kill_descendants()  # as above: another start must find nothing of this one
    return decided or starts.result_after(driver)


def _until_the_end(driver: Guarded, policy: EndPolicy, display: Display) -> Result | None:
    while not select.select([driver.fd], [], [], _POLL_S)[0]:
        display.update()
        if (result := policy.end_now(display.is_training)) is not None:
            return result
    display.update()
    return policy.after_driver(display.is_training)


def request_stop(attempt: Attempt, state: str, cause: str, screen: Screen, *, text: str = "") -> None:
    """Request that the workers save and stop.

    An unreachable storage is only a warning: on S3 the ranks of this node read the request from its spool.
    """
    try:
        attempt.stop.write(StopRequest(cause, state, text))
    except StorageError as error:
        screen.echo(f"warning: {error}")
