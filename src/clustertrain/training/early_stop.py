"""Early stopping: the number of evaluations in a row that did not improve a metric."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from clustertrain.training.ranks.distributed import RankInfo, gather_objects
from clustertrain.training.settings import EarlyStop
from clustertrain.training.values import State


@dataclass
class _Count:
    """The part of the checkpoint; `metric` and `mode` are those of the values that were compared."""

    metric: str
    mode: str
    best: float | None = None  # None: no value was finite
    best_step: int = 0
    without_improvement: int = 0  # evaluations in a row
    step: int = 0  # of the last evaluation that was counted


class EarlyStopping:
    """Whether the run ends early, by the values of its evaluations; the same on every rank.

    The count is saved in the checkpoint, so that a resumed run ends after the same evaluation as an
    uninterrupted one. It starts again if the metric or its mode changes.
    """

    def __init__(self, rule: EarlyStop | None, rank_info: RankInfo, state: Mapping[str, Any] | None) -> None:
        """Start the count, or continue it from a checkpoint with the same metric and mode.

        Args:
            rule: None for a run that does not end early.
            state: of the checkpoint to resume from, or None on a fresh start.
        """
        self._rule, self._rank_info = rule, rank_info
        self._count = _Count(rule.metric, rule.mode) if rule is not None else None
        saved = state["early_stop"] if state is not None else None
        if rule is not None and saved and (saved["metric"], saved["mode"]) == (rule.metric, rule.mode):
            self._count = _Count(**saved)

    def state(self) -> State | None:
        """Return the count for the checkpoint, or None for a run that does not end early."""
        return None if self._count is None else asdict(self._count)

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Count the evaluation after `step`. All ranks call it, and rank 0's value counts for all of them."""
        rule, count = self._rule, self._count
        if rule is None or count is None:
            return
        value = gather_objects(metrics[rule.metric], self._rank_info)[0]
        count.step, gain = step, math.inf
        if count.best is not None:
            gain = value - count.best if rule.mode == "max" else count.best - value
        if math.isfinite(value) and gain > rule.min_delta:
            count.best, count.best_step, count.without_improvement = value, step, 0
        else:
            count.without_improvement += 1

    @property
    def text(self) -> str:
        """Why the run ends early, in three lines, or empty if it does not."""
        rule, count = self._rule, self._count
        if rule is None or count is None or count.without_improvement < rule.patience:
            return ""
        least = f" by more than {rule.min_delta:g}" if rule.min_delta else ""
        best = f"{count.best:.6g} at step {count.best_step}" if count.best is not None else "not finite"
        return (
            f"Early stopping at step {count.step}: {rule.metric} did not improve{least} in "
            f"{count.without_improvement} evaluations in a row.\n"
            f"The best value (mode {rule.mode}) was {best}.\n"
            f"To continue, raise train.early_stop.patience above {count.without_improvement}."
        )
