"""Sums over all ranks: the running loss, metrics of an evaluation, and checks for values that are not
finite."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from clustertrain.errors import ClusterTrainError, JobError
from clustertrain.training.distributed import RankInfo, gather_over_ranks, sum_over_ranks


class NonFiniteLoss(ClusterTrainError):
    """The loss of a step is NaN or infinite; raised on all ranks with the same message."""

    def __init__(self, step: int, rank: int, loss: float) -> None:
        super().__init__(
            f"The loss of step {step} is {loss} on rank {rank}; nothing from step {step} on was saved.\n"
            "Lower the learning rate, set train.clip_norm or train.lr.warmup_steps, or look for bad samples; "
            "the next start resumes from the previous checkpoint."
        )
        self.step, self.rank, self.loss = step, rank, loss

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.step, self.rank, self.loss)


class NonFiniteWeights(ClusterTrainError):
    """The weights are NaN or infinite after a step with a finite loss."""

    def __init__(self, step: int) -> None:
        super().__init__(
            f"After step {step} weights of the model are NaN or infinite, although every loss was finite: "
            "a gradient overflowed.\n"
            "They were not saved. Set train.clip_norm or lower the learning rate; the next start resumes "
            "from the previous checkpoint."
        )
        self.step = step

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.step,)


def check_weights(model: torch.nn.Module, step: int) -> None:
    """
    Raises:
        NonFiniteWeights: on every rank, because DDP keeps the weights of all ranks equal.
    """
    finite = [parameter.detach().isfinite().all() for parameter in model.parameters()]
    if not bool(torch.stack(finite).all()):
        raise NonFiniteWeights(step)


class Meter:
    """The mean loss and the speed between two lines of the log.

    The loss of a step stays on the device: there is no synchronization and no communication until `flush`.
    """

    def __init__(self, rank_info: RankInfo) -> None:
        self._rank_info = rank_info
        self._steps: list[int] = []
        self._losses: list[torch.Tensor] = []
        self._counts: list[int] = []
        self._restart()

    def start_clock(self) -> None:
        self._since = time.perf_counter()

    def _restart(self) -> None:
        self._loss_sum = self._count = self._carried = 0.0
        self.start_clock()

    def add(self, step: int, loss: torch.Tensor, count: int) -> None:
        """Add the mean loss of `count` samples of this rank in `step`."""
        self._steps.append(step)
        self._losses.append(loss.detach().reshape(()))
        self._counts.append(count)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The time inside does not count as training time."""
        before = time.perf_counter()
        yield
        self._since += time.perf_counter() - before

    def flush(self) -> None:
        """Sum over all ranks, with one all_reduce of three numbers. All ranks call it after the same step.

        Raises:
            NonFiniteLoss: on all ranks, naming the first step with such a loss.
        """
        if not self._losses:
            return
        losses = torch.stack(self._losses).double()
        counts = torch.tensor(self._counts, dtype=torch.float64, device=losses.device)
        not_finite = losses.isfinite().logical_not()
        sums = torch.stack([(losses * counts).sum(), counts.sum(), not_finite.sum().double()])
        loss_sum, count, bad = sum_over_ranks(sums, self._rank_info).tolist()
        if bad:
            raise self._first_not_finite(losses.tolist(), not_finite.tolist())
        self._loss_sum += loss_sum
        self._count += count
        self._steps.clear()
        self._losses.clear()
        self._counts.clear()

    def _first_not_finite(self, losses: list[float], not_finite: list[bool]) -> NonFiniteLoss:
        mine = next((i for i, bad in enumerate(not_finite) if bad), None)
        found = [float("inf"), 0.0] if mine is None else [float(self._steps[mine]), losses[mine]]
        of_ranks = gather_over_ranks(torch.tensor(found, dtype=torch.float64), self._rank_info).tolist()
        rank = min(range(len(of_ranks)), key=lambda r: of_ranks[r][0])
        step, loss = of_ranks[rank]
        return NonFiniteLoss(int(step), rank, loss)

    def state(self) -> list[float]:
        """The sums since the last log line, right after `flush`, so that a resumed run logs the same
        values."""
        return [self._loss_sum, self._count]

    def load(self, state: list[float]) -> None:
        self._loss_sum, self._count = state
        self._carried = self._count  # samples of the earlier process, which do not count for the speed

    def read(self) -> tuple[float, float]:
        """(mean loss over samples, samples per second), over all ranks since the last `read`.

        Raises:
            NonFiniteLoss: as in `flush`.
        """
        self.flush()
        loss = self._loss_sum / self._count if self._count else float("nan")
        samples_per_s = (self._count - self._carried) / max(time.perf_counter() - self._since, 1e-9)
        self._restart()
        return loss, samples_per_s


class Metric(Protocol):
    """A metric of an evaluation. Any torchmetrics metric works, and sums over the ranks itself.

    Any other metric has an attribute `sums`, a tensor that the loop sums over the ranks before it calls
    `compute`.
    """

    def reset(self) -> None: ...

    def update(self, outputs: Any, targets: Any, /) -> None: ...

    def compute(self) -> Any: ...


class Accuracy:
    """The fraction of samples whose largest output is the target's class. Exact: it counts in integers."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.sums = torch.zeros(2, dtype=torch.int64)  # right, all

    def update(self, outputs: torch.Tensor, targets: torch.Tensor, /) -> None:
        """`outputs` (samples, classes, ...) scores, `targets` (samples, ...) classes."""
        right = (outputs.argmax(dim=1) == targets).sum()
        self.sums = self.sums.to(right.device)
        self.sums[0] += right
        self.sums[1] += targets.numel()

    def compute(self) -> float:
        right, everything = self.sums.tolist()
        return float(right / everything) if everything else float("nan")


def compute_over_ranks(metrics: Mapping[str, Metric], rank_info: RankInfo) -> dict[str, float]:
    """The value of each metric over all ranks; all of them call it.

    Raises:
        JobError: a metric returns more than one number.
    """
    values: dict[str, float] = {}
    for name, metric in metrics.items():
        sums = getattr(metric, "sums", None)
        if isinstance(sums, torch.Tensor):
            metric.sums = sum_over_ranks(sums.to(rank_info.device), rank_info)  # type: ignore[attr-defined]  # it has one
        result = metric.compute()
        items = result.items() if isinstance(result, Mapping) else [("", result)]
        values |= {f"{name}_{key}" if key else name: _number(name, value) for key, value in items}
    return values


def _number(name: str, value: Any) -> float:
    if isinstance(value, torch.Tensor) and value.numel() != 1:
        raise JobError(
            f"The metric {name!r} returns a tensor of shape {tuple(value.shape)}; it must be one number.\n"
            "Average it (in torchmetrics: average='macro'), or use several metrics in a MetricCollection."
        )
    return float(value)
