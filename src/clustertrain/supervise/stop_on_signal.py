"""Runs a driver and handles signals: the first requests a save and a stop, the second ends the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from clustertrain.node.signals import ReceivedSignals, handled_signals
from clustertrain.observe.screen import Screen
from clustertrain.run.command_line import UNKNOWN, CommandLine
from clustertrain.run.events import EventLog
from clustertrain.run.folder import Attempt
from clustertrain.run.recorded_job import is_of_script
from clustertrain.run.records import Result
from clustertrain.run.result import ended
from clustertrain.supervise.driver_process import start_driver
from clustertrain.supervise.private_folder import remove
from clustertrain.supervise.supervisor import request_stop, supervise


def run_driver(
    attempt: Attempt,
    folder: Path,
    environment: Mapping[str, str],
    meanings: Mapping[int, tuple[str, str]],
    screen: Screen,
    *,
    command: CommandLine = UNKNOWN,
    shielded: bool = False,
) -> Result:
    """Run the attempt's driver to its end.

    Args:
        folder: private, for the driver; it is removed at the end.
        environment: the environment variables of the driver.
        meanings: the signals to handle, each with the state and the cause of a run that it ends.
        command: the command that started the run, for messages.
        shielded: as for Guarded.
    """
    with handled_signals(meanings) as signals:
        try:
            driver = start_driver(attempt, folder, environment, shielded=shielded)
            policy = _StopOnSignal(attempt, signals, meanings, screen)
            return supervise(attempt, driver, policy, screen, command=command)
        finally:
            remove(folder)


class _StopOnSignal:
    """An EndPolicy."""

    def __init__(
        self,
        attempt: Attempt,
        signals: ReceivedSignals,
        meanings: Mapping[int, tuple[str, str]],
        screen: Screen,
    ) -> None:
        self._attempt, self._signals, self._meanings, self._screen = attempt, signals, meanings, screen
        self._is_requested = False

    def end_now(self, is_training: bool) -> Result | None:
        numbers = self._signals.numbers
        if not numbers:
            return None
        state, cause = self._meanings[numbers[-1]]
        if not is_training:
            request_stop(self._attempt, state, cause, self._screen)
            return ended(self._attempt, state, cause)
        if len(numbers) > 1:
            return ended(self._attempt, "stopped", "interrupted_twice")
        if not self._is_requested:
            self._is_requested = True
            request_stop(self._attempt, state, cause, self._screen)
            EventLog(self._attempt.launcher_events).write(
                "stop_requested", cause=cause, of_script=is_of_script(self._attempt)
            )
        return None

    def after_driver(self, is_training: bool) -> Result | None:
        return None
