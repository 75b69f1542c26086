"""How many failures in a row, without a new checkpoint in between, a run has before it ends.

The count follows from the files of the run, so that it continues if the driver itself is killed.
"""

from __future__ import annotations

from clustertrain.run_files.claims import committed_step
from clustertrain.run_files.folder.run_dir import Attempt


class RetryBudget:
    """Counts the failures in a row without a new checkpoint in between."""

    def __init__(self, retries: int, committed_step: int, in_a_row: int = 0) -> None:
        self._retries = retries
        self._committed_step = committed_step
        self.in_a_row = in_a_row

    @classmethod
    def of(cls, attempt: Attempt, retries: int) -> RetryBudget:
        """Rebuild the count from the restarts so far. A restart without an outcome counts as a failure."""
        return cls(retries, committed_step(attempt.run), _failed_in_a_row(attempt))

    @property
    def is_over(self) -> bool:
        """Whether there were too many failures."""
        return self.in_a_row > self._retries

    def is_over_after(self, committed_step: int) -> bool:
        """Count a failure, and return whether there were too many.

        Args:
            committed_step: the step of the newest checkpoint after the failure.
        """
        if committed_step > self._committed_step:
            self.in_a_row = 0
        self._committed_step = committed_step
        self.in_a_row += 1
        return self.is_over

    def text(self, *, of_script: bool = False) -> str:
        """Return why there is no further restart, as text for people; empty if `retries` is 0."""
        if self._retries == 0:
            return ""
        if of_script:
            return (
                f"All {self._retries} restarts of this start are used up (failures.retries). "
                "All restarts of a script count, because its steps are unknown."
            )
        at = f"step {self._committed_step}" if self._committed_step else "step 0: there is no checkpoint"
        return (
            f"All {self._retries} restarts in a row without a new committed step are used up "
            f"(failures.retries); the run is at {at}."
        )


def _failed_in_a_row(attempt: Attempt) -> int:
    """Count the restarts from the newest backwards.

    The count stops at a restart that returned to be resized, and after the one that wrote the newest
    checkpoint.
    """
    committed, count = committed_step(attempt.run), 0
    for restart in reversed(attempt.restarts()):
        outcome = restart.outcome.read()
        if outcome is not None and not outcome.finished:
            break
        count += 1
        plan = restart.plan.read()  # None if it failed before it had one
        if plan is not None and plan.step < committed:
            break
    return count
