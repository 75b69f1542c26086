"""The standing of a run: its state, the cause, and the process that runs it. Plain data, without I/O."""

from __future__ import annotations

from dataclasses import dataclass

from clustertrain.errors import EXIT_FAILED
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.states import CODE_OF_CAUSE, STATES


@dataclass(frozen=True)
class RunState:
    """A state of states.STATES, with its cause and the reason as text.

    `over`: the run has ended, and nothing will restart it automatically. `runner`: the process that runs it,
    as text, or None. `of_result`: the state is that of the newest attempt's result.
    """

    state: str
    cause: str
    text: str = ""
    over: bool = False
    runner: str | None = None
    of_result: bool = False

    @property
    def name(self) -> str:
        """The state and its cause: `waiting (nodes)`."""
        return f"{self.state} ({self.cause})"

    @property
    def line(self) -> str:
        """The state in one line, or more if the reason has more: `waiting (nodes): its pods are starting`."""
        return f"{self.name}: {self.text}" if self.text else self.name

    @property
    def is_settled(self) -> bool:
        """Whether the run ended with a result after which no scheduler starts it again.

        A run that ended at a time limit is not settled: its job may go back into the queue.
        """
        may_go_on = STATES[self.state].restarts or self.cause == "time_limit"
        return self.over and self.of_result and not may_go_on

    @property
    def exit_code(self) -> int | None:
        """The exit code of a run in this state that left no result, or None if it has not ended."""
        if self.state == "failed":
            return CODE_OF_CAUSE.get(self.cause, EXIT_FAILED)
        codes = STATES[self.state].exit_codes
        return codes[0] if codes else None


Ended = Result | RunState
"""How an attempt ended: its result, or the standing by a result that only its cluster can read."""


def alive(live: str, runner: str | None, text: str = "") -> RunState:
    """Return the standing of an attempt that has not ended; `live` is its state by its events."""
    cause = {"waiting": "workers", "staging": "data", "running": "training"}[live]
    return RunState(live, cause, text, runner=runner)


def of_result(result: Ended, *, over: bool, text: str = "") -> RunState:
    """Return the standing by the result of an attempt."""
    return RunState(result.state, result.cause, text, over, of_result=True)
