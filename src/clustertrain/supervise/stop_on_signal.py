"""Runs a driver and handles signals: the first requests a save and a stop, the second ends the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from clustertrain.node.signals import handled_signals
from clustertrain.observe.screen import Screen
from clustertrain.run_files.command_line import UNKNOWN, CommandLine
from clustertrain.run_files.folder.run_dir import Attempt
from clustertrain.run_files.recorded_job import is_of_script
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.result import ended
from clustertrain.run_files.streams.event_log import EventLog
from clustertrain.supervise.driver_process import start_driver
from clustertrain.supervise.orphans import end_processes_of
from clustertrain.supervise.private_folder import private_folder, remove
from clustertrain.supervise.process import Guarded
from clustertrain.supervise.supervisor import request_stop, supervise


def run_driver(
    attempt: Attempt,
    environment_in: Callable[[Path], Mapping[str, str]],
    meanings: Mapping[int, tuple[str, str]],
    screen: Screen,
    *,
    command: CommandLine = UNKNOWN,
    shielded: bool = False,
    owns_process: bool = True,
    before: Sequence[int] = (),
) -> Result:
    """Run the attempt's driver to its end.

    Args:
        environment_in: the environment variables of the driver, for a private folder of its own. Each start
            of the driver has another folder, which is removed at its end.
        meanings: the signals to handle, each with the state and the cause of a run that it ends.
        command: the command that started the run, for messages.
        shielded: as for Guarded; only the first signal counts: a scheduler may send several, and kills the
            job itself.
        owns_process: as for `supervise`.
        before: the signals that this process has received before.
    """
    with handled_signals(meanings) as signals, ExitStack() as at_end:
        signals[:0] = before

        def start() -> Guarded:
            at_end.close()  # of the start before
            folder = private_folder()
            at_end.callback(remove, folder)  # for the case that both guardians are killed
            if not owns_process:
                at_end.callback(end_processes_of, folder)
            return start_driver(attempt, folder, environment_in(folder), shielded=shielded)

        policy = StopOnSignal(attempt, signals, meanings, screen, once=shielded)
        return supervise(attempt, start, policy, screen, command=command, owns_process=owns_process)


@dataclass
class StopOnSignal:
    """An EndPolicy; its arguments are those of `run_driver`."""

    attempt: Attempt
    signals: Sequence[int]
    meanings: Mapping[int, tuple[str, str]]
    screen: Screen
    once: bool = False
    _is_requested: bool = False

    def end_now(self, is_training: bool) -> Result | None:
        numbers = self.signals[:1] if self.once else self.signals
        if not numbers:
            return None
        state, cause = self.meanings[numbers[-1]]
        if not is_training:
            request_stop(self.attempt, state, cause, self.screen)
            return ended(self.attempt, state, cause)
        if len(numbers) > 1:
            return ended(self.attempt, "stopped", "interrupted_twice")
        if not self._is_requested:
            self._is_requested = True
            request_stop(self.attempt, state, cause, self.screen)
            EventLog(self.attempt.launcher_events).write(
                "stop_requested", cause=cause, of_script=is_of_script(self.attempt)
            )
        return None

    def after_driver(self, is_training: bool) -> Result | None:
        return None
