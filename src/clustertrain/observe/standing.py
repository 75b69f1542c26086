"""Where a run stands: a state, its cause, and who runs it. No file, no clock, no scheduler in here."""

from __future__ import annotations

from dataclasses import dataclass

from clustertrain.run.records import Result


@dataclass(frozen=True)
class Standing:
    """A row of states.STATES, with its cause and why it stands so.

    `over`: nothing happens any more unless somebody starts it. `runner`: who runs it, in words, None when
    nobody does. `of_result`: the state is that of the newest attempt's result.
    """

    state: str
    cause: str
    text: str = ""
    over: bool = False
    runner: str | None = None
    of_result: bool = False


def alive(live: str, runner: str | None, text: str = "") -> Standing:
    """An attempt that has not ended; `live` is what its events say of it."""
    cause = {"waiting": "workers", "staging": "data", "running": "training"}[live]
    return Standing(live, cause, text, runner=runner)


def of_result(result: Result, *, over: bool, text: str = "") -> Standing:
    """The state that an attempt gave itself."""
    return Standing(result.state, result.cause, text, over, of_result=True)
