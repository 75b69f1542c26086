"""The learning rates of a whole run, for its log: a schedule that was meant in epochs shows in them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from copy import copy
from itertools import pairwise
from typing import Any

import torch
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, CyclicLR, OneCycleLR

from clustertrain.training.task import Task

_LIMIT_S = 2.0
_LOST = 1e-6  # of the maximum
_MOST_PERIODS = 3
_SAME = 1e-9  # of the maximum: a difference of rounding


class _StandIn(torch.optim.Optimizer):
    """Has the groups of an optimizer, with one number each in place of the parameters."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # it has no loss
        """Do nothing: only the rates count."""


class Schedule:
    """A task's scheduler, stepped through a run of its own, as far as two seconds allow."""

    def __init__(
        self, task: Task, groups: list[dict[str, Any]], defaults: dict[str, Any], total_steps: int, per: int
    ) -> None:
        """Step a scheduler of the task with a stand-in for the optimizer, and record its rates.

        Args:
            groups: the options of the optimizer's groups before the scheduler was made.
            per: the scheduler is stepped after so many optimizer steps.
        """
        self._total_steps, self._per, self._is_cyclic = total_steps, per, False
        self._rates: list[list[float]] = []  # of the groups, before each step of the scheduler
        stand_in = _StandIn([{**group, "params": [torch.zeros(1)]} for group in groups], defaults)
        ends_s = time.monotonic() + _LIMIT_S
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch expects an optimizer step before each
            try:
                made: Any = copy(task).scheduler(stand_in, total_steps)  # which may keep it as an attribute
                scheduler = made[0] if isinstance(made, tuple) else made
                self._is_cyclic = _is_cyclic(scheduler)
                while len(self._rates) * per < total_steps and time.monotonic() < ends_s:
                    self._rates.append([float(group["lr"]) for group in stand_in.param_groups])
                    scheduler.step()
            except Exception:  # noqa: BLE001  it may need what only a training has, such as gradients
                return

    def text(self, warmup: Callable[[int], float]) -> str:
        """Return the rates of the first group at the start, the quarters and the end of the run."""
        marks = sorted({1 + i * (self._total_steps - 1) // 4 for i in range(5)})
        shown = [
            f"{self._rates[(step - 1) // self._per][0] * warmup(step):.3g} in step {step}"
            for step in marks
            if (step - 1) // self._per < len(self._rates)
        ]
        rest = "" if len(shown) == len(marks) else "; later ones would take longer to find"
        return f"learning rate over the run: {', '.join(shown)}{rest}"

    def warning(self) -> str:
        """Return what is wrong with the rates if the schedule is right in another unit, or ""."""
        found = (self._mistake(rates) for rates in zip(*self._rates, strict=True))
        text = "" if self._is_cyclic else next(filter(None, found), "")
        if not text:
            return ""
        unit, remedy = "optimizer step", 'If it counts epochs, return (scheduler, "epoch")'
        if self._per > 1:
            unit, remedy = f"epoch of {self._per} steps", "If it counts steps, return the scheduler alone"
        return f"the task's scheduler, stepped after each {unit}, {text}. {remedy}"

    def _mistake(self, rates: Sequence[float]) -> str:
        top = max(rates)
        rises = [b > a for a, b in pairwise(rates) if abs(b - a) > _SAME * top]
        after = rises[rises.index(False) :] if False in rises else []  # its first fall
        if 0 < after.count(True) <= after.count(False) / 4:  # it restarts
            return ""
        periods = bool(after) + sum(before and not rise for before, rise in pairwise(after))
        if periods > _MOST_PERIODS:
            return f"has {periods} periods in the {self._total_steps} steps of the run"
        for i, rate in enumerate(rates):
            step = 1 + i * self._per
            if i > rates.index(top) and rate < _LOST * top and step <= 0.9 * self._total_steps:
                return f"falls from {top:.3g} to {rate:.3g} in step {step} of {self._total_steps}"
        return ""


def _is_cyclic(scheduler: Any) -> bool:
    """Return whether a scheduler, or one inside it, has periods on purpose."""
    inner = getattr(scheduler, "_schedulers", ())
    of_class = isinstance(scheduler, CyclicLR | OneCycleLR | CosineAnnealingWarmRestarts)
    return of_class or any(map(_is_cyclic, inner))
