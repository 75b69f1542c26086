"""The running loss over all ranks, and checks for losses and weights that are not finite."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf

import torch
import torch.distributed as dist

from clustertrain.errors import ClusterTrainError
from clustertrain.training.ranks.distributed import RankInfo, gather_objects, sum_over_ranks
from clustertrain.training.ranks.dtensors import is_sharded, local
from clustertrain.training.step.counted import Count, Counts, mean_of
from clustertrain.training.step.not_finite import REMEDY, NotFinite

_RESUME = "To continue from the previous checkpoint, start it again with --accept-changes."


class NonFiniteLoss(ClusterTrainError):
    """The loss of a step is NaN or infinite; raised on all ranks with the same message."""


class NonFiniteWeights(ClusterTrainError):
    """The weights are NaN or infinite after a step with a finite loss."""


def check_weights(model: torch.nn.Module, step: int) -> None:
    """Check that the weights are finite after step `step`; every rank calls it.

    Raises:
        NonFiniteWeights: on every rank: DDP keeps the weights of all ranks equal, with FSDP the ranks
            exchange what they found.
    """
    parts = [local(parameter.detach()) for parameter in model.parameters()]
    finite = torch.stack([part.isfinite().all() for part in parts]).all().int()
    if is_sharded(model):
        dist.all_reduce(finite, op=dist.ReduceOp.MIN)
    if not bool(finite):
        raise NonFiniteWeights(
            f"After step {step} weights of the model are NaN or infinite, although every loss was finite: "
            "a gradient overflowed.\n"
            f"They were not saved. {REMEDY}. {_RESUME}"
        )


class Meter:
    """The mean loss and the speed between two lines of the log.

    The loss of a step stays on the device: there is no synchronization and no communication until `flush`.
    """

    def __init__(self, rank_info: RankInfo, not_finite: NotFinite, counts: Counts) -> None:
        self._rank_info, self.not_finite, self._counts = rank_info, not_finite, counts
        self.added: list[tuple[int, torch.Tensor, int, Count]] = []  # step, mean loss, samples, their weight
        self.paused_s = 0.0  # in all, that did not count
        self._restart()

    def start_clock(self) -> None:
        self._since = time.perf_counter()

    def _restart(self) -> None:
        self._loss_sum = self._weight = self._samples = self._carried = 0.0
        self.start_clock()

    def add(self, step: int, loss: torch.Tensor, samples: int, count: Count | None = None) -> None:
        """Add the mean loss of `samples` of this rank in `step`; with a `count` their sum."""
        loss = loss.detach().reshape(())
        if count is None:
            self.added.append((step, loss, samples, samples))
        else:
            self.added.append((step, mean_of(loss, count), samples, count))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the time inside out of the training time."""
        before = time.perf_counter()
        yield
        paused_s = time.perf_counter() - before
        self._since += paused_s
        self.paused_s += paused_s

    def flush(self) -> None:
        """Sum over all ranks, with one all_reduce of three numbers. All ranks call it after the same step.

        Raises:
            NonFiniteLoss: on all ranks, naming the first step with such a loss.
            DataError: on all ranks: the counts of a step add up to 0.
        """
        if not self.added:
            return
        self._counts.check()
        steps, each, samples, of_losses = zip(*self.added, strict=True)
        losses = torch.stack([loss.double() for loss in each])
        weights = _stacked(of_losses, losses.device)
        not_finite = losses.isfinite().logical_not()
        sums = torch.stack([(losses * weights).sum(), weights.sum(), not_finite.sum().double()])
        loss_sum, weight, bad = sum_over_ranks(sums, self._rank_info).tolist()
        if bad:
            raise self._first_not_finite(steps, losses.tolist(), not_finite.tolist())
        self._loss_sum += loss_sum
        self._weight += weight
        self._samples += self._rank_info.world_size * sum(samples)
        self.added.clear()

    def _first_not_finite(
        self, steps: Sequence[int], losses: list[float], not_finite: list[bool]
    ) -> NonFiniteLoss:
        mine = next((i for i, bad in enumerate(not_finite) if bad), None)
        found = (inf, 0.0, "") if mine is None else (steps[mine], losses[mine], self.not_finite.where)
        of_ranks = gather_objects(found, self._rank_info)
        rank = min(range(len(of_ranks)), key=lambda r: of_ranks[r][0])
        step, loss, where = of_ranks[rank]
        return NonFiniteLoss(
            f"The loss of step {step} is {loss} on rank {rank}; nothing from step {step} on was saved.\n"
            f"{where}{REMEDY}, or look for bad samples. {_RESUME}"
        )

    def state(self) -> list[float]:
        """Return the sums since the last log line, as of the last `flush`.

        With them a resumed run logs the same values.
        """
        return [self._loss_sum, self._weight, self._samples]

    def unflushed(self) -> torch.Tensor:
        """Return the losses of this rank since the last `flush`, float64 (passes, 4).

        A row has the step, the loss, the samples and their weight.
        """
        if not self.added:
            return torch.empty(0, 4, dtype=torch.float64)
        steps, each, samples, weights = zip(*self.added, strict=True)
        losses = torch.stack([loss.double() for loss in each])
        columns = [_stacked(column, losses.device) for column in (steps, samples, weights)]
        return torch.stack([columns[0], losses, *columns[1:]], dim=1)

    def load(self, state: list[float], losses: torch.Tensor) -> None:
        """Continue with the sums that `state` returned and the losses that were not yet summed.

        Args:
            losses: of this rank, from `unflushed`.
        """
        self._loss_sum, self._weight, self._samples = state
        self.added = [
            (int(step), loss.to(self._rank_info.device), int(samples), float(weight))
            for step, loss, samples, weight in losses.unbind()
        ]
        added = self._rank_info.world_size * sum(samples for _, _, samples, _ in self.added)
        self._carried = self._samples + added  # of the earlier process, which do not count for the speed

    def read(self) -> tuple[float, float]:
        """Return (mean loss, samples per second), over all ranks since the last `read`.

        Raises: as in `flush`.
        """
        self.flush()
        loss = self._loss_sum / self._weight if self._weight else float("nan")
        samples_per_s = (self._samples - self._carried) / max(time.perf_counter() - self._since, 1e-9)
        self._restart()
        return loss, samples_per_s


def _stacked(numbers: Sequence[Count], device: torch.device) -> torch.Tensor:
    if any(isinstance(each, torch.Tensor) for each in numbers):
        return torch.stack([torch.as_tensor(each, dtype=torch.float64, device=device) for each in numbers])
    return torch.tensor(numbers, dtype=torch.float64, device=device)
