"""Losses that are sums, with counts: the mean of a step is Σ sum / Σ count over all its ranks and passes.

The counts of later passes are not known at the first backward pass. So each backward pass is of sum / K, and
the gradients of the step are multiplied by world_size · K / Σ count before anything else uses them; DDP and
FSDP have averaged them over the ranks. K is a power of two, so that both are exact, near the count of the
first batch, so that the gradients have the size of those of a mean. K is in the checkpoint.
"""

from __future__ import annotations

import math
from statistics import fmean
from typing import Any

import torch
import torch.distributed as dist

from clustertrain.errors import DataError, JobError
from clustertrain.training.ranks.distributed import RankInfo, gather_objects
from clustertrain.training.task import Task
from clustertrain.training.values import State

_BOTH = "Return the same each time: the mean as a tensor, or (sum, count)."
Count = float | torch.Tensor  # a tensor stays on the GPU, where reading it would wait


def parts(loss: Any) -> tuple[Any, Any]:
    """Return the sum and the count that a task returned, or its mean and None."""
    return loss if isinstance(loss, tuple) and len(loss) == 2 else (loss, None)


def number_of(count: Count) -> Count:
    """Return a count as a number, or as a tensor that stays on the GPU, so that nothing waits for it."""
    if isinstance(count, torch.Tensor) and count.device.type != "cpu":
        return count.detach().double().reshape(())
    return float(count)


def mean_of(loss: torch.Tensor, count: Count) -> torch.Tensor:
    """Return the mean, or the sum itself if the count is 0."""
    divisor = torch.where(count == 0, 1.0, count) if isinstance(count, torch.Tensor) else count or 1.0
    return loss.double() / divisor


def check_kind(what: str, count: Count | None, *, is_counted: bool) -> None:
    """Check that a loss has a count if the losses before had one, and only then.

    Raises:
        JobError: `what` returned the other kind before.
    """
    if (count is not None) != is_counted:
        kinds = ["a mean", "(sum, count)"]
        before, now = kinds if count is not None else kinds[::-1]
        raise JobError(f"{what} returned {now}, and {before} before.\n{_BOTH}")


class Counts:
    """The counts of this rank's passes in a step, and their sum over all ranks.

    For a task whose losses are means it does nothing after the first pass.
    """

    def __init__(self, task: Task, rank_info: RankInfo) -> None:
        self._what, self._rank_info = f"{type(task).__name__}.loss()", rank_info
        self._unit = 0.0  # K, or 0 while it is not known
        self._is_counted: bool | None = None  # None before the first pass
        self._own: Count = 0.0  # of this rank, in this step
        self._total: tuple[Any, torch.Tensor] | None = None  # of all ranks, while it is being summed
        self._totals: list[tuple[int, torch.Tensor]] = []  # step, count of all ranks; since the last `check`

    def take(self, loss: Any, share: float, *, last: bool) -> tuple[torch.Tensor, torch.Tensor, Count | None]:
        """Take what a pass has returned; the `last` pass of a step begins the sum of the counts of all ranks.

        Args:
            share: of this pass in the step, for a mean.

        Returns:
            the mean or the sum, the value for the backward pass, and the count, None for a mean.

        Raises:
            JobError: the losses before were of the other kind, or the losses of other ranks are.
        """
        value, count = parts(loss)
        if self._is_counted is None:
            self._agree(count)
        check_kind(self._what, count, is_counted=bool(self._is_counted))
        if count is None:
            return value, value * share, None
        count = number_of(count)
        self._own = self._own + count
        if last:
            total = torch.zeros((), dtype=torch.float64, device=self._rank_info.device) + self._own
            work = dist.all_reduce(total, async_op=True) if self._rank_info.world_size > 1 else None
            self._total = work, total
        return value, value / self._unit, count

    def _agree(self, count: Any) -> None:
        of_ranks = gather_objects(None if count is None else float(count), self._rank_info)
        counts = [each for each in of_ranks if each is not None]
        if counts and len(counts) < len(of_ranks):
            mean, pair = of_ranks.index(None), of_ranks.index(counts[0])
            raise JobError(
                f"{self._what} returned a mean on rank {mean}, and (sum, count) on rank {pair}.\n{_BOTH}"
            )
        self._is_counted = bool(counts)
        if counts and not self._unit:
            self._unit = 2.0 ** round(math.log2(max(1.0, fmean(counts))))

    def end_step(self, step: int, loss: torch.Tensor | float) -> tuple[Any, float | torch.Tensor | None]:
        """Finish a step after its last pass, with the count of all ranks.

        Args:
            loss: the sum of this rank's sums / K, or its mean.

        Returns:
            this rank's mean, which is NaN if its count is 0, and the factor for the gradients, or None.
        """
        if self._total is None:
            return loss, None
        (work, total), own = self._total, self._own
        self._total, self._own = None, 0.0
        if work is not None:
            work.wait()
        self._totals.append((step, total))
        factor = self._rank_info.world_size * self._unit / total
        return loss * self._unit / own, factor if factor.is_cuda else factor.item()

    def check(self) -> None:
        """Check that all ranks together counted something in each step since the last call.

        All ranks call it after the same step; it waits for the GPU.

        Raises:
            DataError: on all ranks: the counts of a step since the last call add up to 0.
        """
        empty = next((step for step, total in self._totals if not total), None)
        self._totals.clear()
        if empty is not None:
            raise DataError(
                f"{self._what} counted 0 on all ranks in step {empty}: its loss has no mean, and nothing "
                f"from step {empty} on was saved.\n"
                "Leave samples without anything to count out of the data, or use larger batches."
            )

    def state(self) -> dict[str, float]:
        """Return the state for a checkpoint, which is empty for a task whose losses are means."""
        return {"count_unit": self._unit} if self._unit else {}

    def load(self, state: State) -> None:
        self._unit = state.get("count_unit", 0.0)
