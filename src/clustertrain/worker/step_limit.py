"""The limit of a step that lasts as long as those before it (phase "usual_step"), learnt from them."""

from __future__ import annotations

from collections import deque

UPPER_S = 600.0
"""The limit of a step of which nothing is known."""
_FACTOR = 10
_STEPS = 100
_FEWEST_STEPS = 10  # from fewer nothing is learnt: the first steps allocate and tune
# A hang is named within 30 s: then the other ranks have 5 s for their stacks, and each has 2 s to answer.
_LOWER_S = 20.0
_WIDENED = 4  # so it is UPPER_S after three false alarms, as many as failures.retries allows


class StepLimit:
    """The limit for the duration of a step: a multiple of the slowest of the last steps.

    Args:
        alarms: how often the watchdog has ended a rank of this attempt; each of them may have been false.
    """

    def __init__(self, alarms: int) -> None:
        self._lower_s = min(UPPER_S, _LOWER_S * _WIDENED**alarms)
        self._steps_s: deque[float] = deque(maxlen=_STEPS)
        self.limit_s = UPPER_S

    def add(self, step_s: float) -> None:
        self._steps_s.append(step_s)
        if len(self._steps_s) >= _FEWEST_STEPS:
            self.limit_s = min(UPPER_S, max(self._lower_s, _FACTOR * max(self._steps_s)))

    @property
    def why(self) -> str:
        """The arithmetic of the limit."""
        if len(self._steps_s) < _FEWEST_STEPS:
            return f"a limit is learnt from {_FEWEST_STEPS} steps, and there were {len(self._steps_s)}"
        return (
            f"the slowest of the last {len(self._steps_s)} steps took {max(self._steps_s):.2g} s, and the "
            f"limit is {_FACTOR} times that, at least {self._lower_s:g} s and at most {UPPER_S:g} s"
        )
