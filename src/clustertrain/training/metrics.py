"""Metrics of an evaluation: three kinds, and how each is computed over the samples of all ranks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

from clustertrain.errors import JobError
from clustertrain.training.gathering import SampleRows
from clustertrain.training.ranks.distributed import RankInfo, gather_objects, sum_over_ranks
from clustertrain.training.values import Outputs

_PROTOCOL = ("reset", "update", "compute")


class Metric(Protocol):
    """A metric of an evaluation; docs/guides/metrics.md compares the kinds.

    - Any torchmetrics metric or MetricCollection is updated batch by batch, on the device, and combines its
      states over the ranks itself.
    - A metric with an attribute `sums`, a tensor, is updated batch by batch, on the device. The loop adds
      `sums` over the ranks before `compute`. `reset` sets it to zero.
    - Any other metric is updated once per evaluation, on rank 0, with the outputs and targets of all samples
      of all ranks: on the CPU, each sample once, in the order of the data set. The value is the one that a
      single process computes. It needs CPU memory for all outputs and targets on rank 0.

    `compute` returns one number, or a mapping of numbers: then `name_key` is logged for each key.
    """

    def reset(self) -> None: ...

    def update(self, outputs: Outputs, targets: Outputs, /) -> None: ...

    def compute(self) -> Any: ...


MetricFunction = Callable[[Outputs, Outputs], Any]
"""`metric(outputs, targets)`: called once, with all samples, as the last kind of Metric."""


class Accuracy:
    """The fraction of samples whose largest output is the target's class. Exact: it counts in integers."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.sums = torch.zeros(2, dtype=torch.int64)  # right, all

    def update(self, outputs: torch.Tensor, targets: torch.Tensor, /) -> None:
        """Count a batch: `outputs` (samples, classes, ...) scores, `targets` (samples, ...) classes."""
        right = (outputs.argmax(dim=1) == targets).sum()
        self.sums = self.sums.to(right.device)
        self.sums[0] += right
        self.sums[1] += targets.numel()

    def compute(self) -> float:
        right, everything = self.sums.tolist()
        return float(right / everything) if everything else float("nan")


class Metrics:
    """The metrics of a task, by name.

    Raises:
        JobError: one of them is not a metric, or its name is not possible; names it.
    """

    def __init__(
        self, task: str, metrics: Mapping[str, Metric | MetricFunction], device: torch.device
    ) -> None:
        self._task = task
        self.names = list(metrics)
        self._torchmetrics: dict[str, Any] = {}
        self._summed: dict[str, Any] = {}
        self._whole: dict[str, Any] = {}
        for name, metric in metrics.items():
            self._kind(name, metric)[name] = metric
        for metric in self._torchmetrics.values():
            metric.to(device)  # it keeps its states there
        self._rows = SampleRows(task, list(self._whole))

    def _kind(self, name: str, metric: Any) -> dict[str, Any]:
        """Return the metrics of the kind of `metric`, one of three."""
        missing = [method for method in _PROTOCOL if not callable(getattr(metric, method, None))]
        what = f"The metric {name!r} of {self._task}"
        if not isinstance(name, str) or name == "loss":
            raise JobError(
                f"{what} cannot have this name.\nUse a string other than 'loss', the evaluation's own."
            )
        if isinstance(metric, type):
            raise JobError(
                f"{what} is the class {metric.__name__}.\nReturn an instance: {metric.__name__}()."
            )
        if _is_torchmetrics(metric):
            return self._torchmetrics
        if not missing:
            metric.reset()  # which may create `sums`
            return self._summed if hasattr(metric, "sums") else self._whole
        if callable(metric) and len(missing) == len(_PROTOCOL):
            return self._whole
        raise JobError(
            f"{what} is a {type(metric).__name__}, which lacks {', '.join(missing)}.\n"
            "Return a metric of torchmetrics, an object with reset, update and compute, or a function of "
            "(outputs, targets): docs/guides/metrics.md."
        )

    def reset(self) -> None:
        for metric in (*self._torchmetrics.values(), *self._summed.values()):
            metric.reset()
        self._rows.clear()

    def update(self, outputs: Outputs, targets: Outputs, ids: list[int]) -> None:
        """Add a batch of this rank; `ids` are the places of its samples in the data set.

        Raises:
            JobError: there are metrics, but no outputs, or they cannot be collected.
        """
        if outputs is None and self.names:
            raise JobError(
                f"{self._task}.metrics() has {', '.join(self.names)}, but {self._task}.eval_step returns no "
                "outputs.\nOverride eval_step to return (loss, outputs, targets)."
            )
        for metric in (*self._torchmetrics.values(), *self._summed.values()):
            metric.update(outputs, targets)
        if self._whole:
            self._rows.add(outputs, targets, ids)

    def compute(self, rank_info: RankInfo, samples: int) -> dict[str, float]:
        """Compute the values over all ranks, in the order of the names; all ranks call it, and get the same.

        Args:
            samples: of the whole data set.

        Raises:
            JobError: a metric returns more than one number, or two values have the same name.
        """
        of_metrics = {}
        for name, metric in self._torchmetrics.items():
            _sync_over_ranks(metric, sync=rank_info.world_size > 1)
            of_metrics[name] = _numbers(name, metric.compute())
        for name, metric in self._summed.items():
            if not isinstance(metric.sums, torch.Tensor):
                raise JobError(
                    f"The metric {name!r} of {self._task} has `sums` of type {type(metric.sums).__name__}.\n"
                    "`sums` must be a tensor, which is added over the ranks."
                )
            metric.sums = sum_over_ranks(metric.sums.to(rank_info.device), rank_info)
            of_metrics[name] = _numbers(name, metric.compute())
        if self._whole:
            of_metrics |= self._compute_whole(rank_info, samples)
        return joined({}, *(of_metrics[name] for name in self.names))

    def _compute_whole(self, rank_info: RankInfo, samples: int) -> dict[str, dict[str, float]]:
        of_all_ranks = self._rows.of_all_ranks(rank_info, samples)
        values = {}
        if of_all_ranks is not None:
            with _without_other_ranks():
                for name, metric in self._whole.items():
                    values[name] = _numbers(name, _of_whole(metric, *of_all_ranks))
        return gather_objects(values, rank_info)[0]


def joined(*parts: Mapping[str, float]) -> dict[str, float]:
    """Join the values of an evaluation by their names.

    Raises:
        JobError: two of the parts have a value of the same name.
    """
    values: dict[str, float] = {}
    for part in parts:
        for name in values.keys() & part.keys():
            raise JobError(f"Two values of the evaluation are called {name!r}.\nRename one of the metrics.")
        values |= part
    return values


def _of_whole(metric: Any, outputs: Outputs, targets: Outputs) -> Any:
    if not hasattr(metric, "compute"):
        return metric(outputs, targets)
    metric.reset()
    metric.update(outputs, targets)
    return metric.compute()


@contextmanager
def _without_other_ranks() -> Iterator[None]:
    """Let torch.distributed seem not to be initialized inside.

    Only rank 0 computes these metrics, and a torchmetrics metric inside of one would wait for the other
    ranks.
    """
    is_initialized = dist.is_initialized
    dist.is_initialized = lambda: False
    try:
        yield
    finally:
        dist.is_initialized = is_initialized


def _is_torchmetrics(metric: Any) -> bool:
    torchmetrics = sys.modules.get("torchmetrics")  # imported by whoever created a metric of it
    return torchmetrics is not None and isinstance(
        metric, torchmetrics.Metric | torchmetrics.MetricCollection
    )


def _sync_over_ranks(metric: nn.Module, *, sync: bool) -> None:
    """Set whether a torchmetrics metric, and each one inside of it, adds the states of other ranks."""
    for part in metric.modules():
        if hasattr(part, "distributed_available_fn"):
            part.distributed_available_fn = lambda: sync  # type: ignore[assignment]


def _numbers(name: str, result: Any) -> dict[str, float]:
    """Return the values of a metric by their full names."""
    items = result.items() if isinstance(result, Mapping) else [("", result)]
    return {f"{name}_{key}" if key else name: _number(name, value) for key, value in items}


def _number(name: str, value: Any) -> float:
    if isinstance(value, torch.Tensor) and value.numel() != 1:
        raise JobError(
            f"The metric {name!r} returns a tensor of shape {tuple(value.shape)}; it must be one number.\n"
            "Average it (in torchmetrics: average='macro'), or use several metrics in a MetricCollection."
        )
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise JobError(
            f"The metric {name!r} returns {type(value).__name__}, which is not a number.\n"
            "Return a number, a tensor with one number, or a mapping of them."
        ) from error
