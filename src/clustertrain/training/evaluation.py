"""One pass over the evaluation data: each sample counted once, whatever the number of ranks."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from clustertrain.errors import DataError, JobError
from clustertrain.training.data.loader_kinds import (
    batch_fetch,
    evaluation_keys,
    processes_of,
    sample_batch,
    samples_of,
)
from clustertrain.training.data.loading import Loader, to_device
from clustertrain.training.data.sampling import TrainOrder
from clustertrain.training.images import images_of
from clustertrain.training.metrics import Metrics, joined
from clustertrain.training.ranks.distributed import RankInfo, sum_over_ranks
from clustertrain.training.ranks.dtensors import is_sharded
from clustertrain.training.ranks.rng import derive_seed, restoring_rng, seed_all
from clustertrain.training.settings import TrainSettings
from clustertrain.training.step.counted import check_kind, mean_of, number_of, parts
from clustertrain.training.step.precision import Precision
from clustertrain.training.task import Task, collate_of
from clustertrain.training.task_errors import described, first_batch, refusing
from clustertrain.training.values import Dataset


class Evaluation:
    """Evaluates the task's model on `dataset`; restores the model's mode and all random states."""

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        dataset: Dataset,
        order: TrainOrder,
        *,
        precision: Precision,
        rank_info: RankInfo,
    ) -> None:
        self._task, self._model, self._rank_info = task, model, rank_info
        settings, batch_size = order.settings, order.sizes.batch_size
        self._dataset, self._batch_size, self._precision = dataset, batch_size, precision
        self._seed = settings.seed
        self._of_task = dict(task.metrics())
        self._metrics = Metrics(type(task).__name__, self._of_task, rank_info.device)
        samples, limit = samples_of(dataset, rank_info), settings.limit_batches
        self._samples = samples if limit is None else min(samples, limit * batch_size * rank_info.world_size)
        self._alone = replace(rank_info, rank=0, world_size=1)
        # With fewer samples than ranks some ranks would have none, and torchmetrics cannot gather states
        # without a dtype: every rank then evaluates all of these samples by itself.
        self._counted = rank_info if self._samples >= rank_info.world_size else self._alone
        keys = partial(evaluation_keys, dataset, self._samples, batch_size)
        own = keys(self._counted.rank, self._counted.world_size)
        most = keys(0, self._counted.world_size)
        self._passes_of_others = len(most) - len(own) if is_sharded(model) else 0
        self._loader = Loader(
            batch_fetch(dataset, collate_of(task), f"{type(task).__name__}.eval_data()"),
            own,
            processes=processes_of(dataset, settings.processes),
            device=rank_info.device,
            reuse=True,
        )

    def run(self, step: int) -> dict[str, float]:
        """Compute the mean loss and the metrics over all samples, the same on every rank.

        All ranks call it.
        """
        self._broadcast_buffers()
        with self._evaluating(step, self._rank_info.rank):
            return self._measure()

    def of_one_batch(self) -> dict[str, float]:
        """Compute loss and metrics of one batch on this rank without the others, before the first step.

        The names are those that `run` returns. The samples are spread evenly over a map-style data set,
        because a batch of a sorted one could contain a single class, for which a metric may be undefined.

        Raises:
            JobError: a sample, `eval_step` or a metric raises; names the line of the user's code.
        """
        name = type(self._task).__name__
        key = sample_batch(self._dataset, self._batch_size)
        batch = first_batch(self._task, "eval_data", self._dataset, key)
        with self._evaluating(step=0, rank=0):
            with refusing(
                self._task,
                "eval_step",
                "loss",
                remedy=f"The batch is {described(batch)}, the model in evaluation mode. "
                "Return (mean loss, outputs, targets), or ((sum, count), outputs, targets).",
            ):
                batch = to_device(batch, self._rank_info.device)
                with self._precision.autocast():
                    loss, outputs, targets = self._task.eval_step(self._model, batch)
                loss, count = parts(loss)
                values = {"loss": float(loss if count is None else mean_of(loss, number_of(count)))}
            found = [values]
            for metric_name, metric in self._of_task.items():
                with (
                    refusing(
                        self._task,
                        "metrics",
                        what=f"The metric {metric_name!r} of {name}",
                        remedy=f"Outputs are {described(outputs)}, targets {described(targets)}. "
                        "A metric must return a number for any batch.",
                    ),
                    warnings.catch_warnings(),
                ):
                    warnings.simplefilter("ignore")  # that a value of so few samples means little
                    metrics = Metrics(name, {metric_name: metric}, self._rank_info.device)
                    metrics.reset()
                    metrics.update(outputs, targets, key.ids)
                    found.append(metrics.compute(self._alone, len(key.ids)))
        return joined(*found)

    def images(self, step: int) -> dict[str, torch.Tensor]:
        """Compute the task's images, and return them on rank 0; see images.images_of.

        Rank 0 computes them without the others; with FSDP every rank does, because each has a part of the
        weights.

        Raises:
            JobError: one of them is not an image.
        """
        is_first = self._rank_info.rank == 0
        if type(self._task).images is Task.images or not (is_first or is_sharded(self._model)):
            return {}
        with self._evaluating(step, rank=0), self._precision.autocast():
            images = images_of(self._task, self._model)
        return images if is_first else {}

    @contextmanager
    def _evaluating(self, step: int, rank: int) -> Iterator[None]:
        """Set the model to evaluation mode inside, without gradients; restore all afterwards.

        The random numbers inside follow from `step` and `rank`.
        """
        modes = [(module, module.training) for module in self._model.modules()]
        # inference_mode would leave tensors in metrics that cannot be changed later
        with restoring_rng(self._rank_info.device), torch.no_grad():
            seed_all(derive_seed(self._seed, step), rank)
            self._model.eval()
            try:
                yield
            finally:
                for module, mode in modes:
                    module.training = mode

    def _broadcast_buffers(self) -> None:
        """Broadcast rank 0's buffers: BatchNorm's running values differ between ranks."""
        if self._rank_info.world_size > 1:
            for buffer in self._model.buffers():
                dist.broadcast(buffer, src=0)

    def _measure(self) -> dict[str, float]:
        self._metrics.reset()
        sums = torch.zeros(2, dtype=torch.float64, device=self._rank_info.device)  # loss × samples, samples
        is_counted: bool | None = None
        for key, batch in self._loader:
            with self._precision.autocast():
                loss, outputs, targets = self._task.eval_step(self._model, batch)
            self._metrics.update(outputs, targets, key.ids)
            loss, count = parts(loss)
            is_counted = count is not None if is_counted is None else is_counted
            check_kind(f"{type(self._task).__name__}.eval_step()", count, is_counted=is_counted)
            of_loss = 1 if is_counted else len(key.ids)
            sums[0] += torch.as_tensor(loss, dtype=torch.float64).detach().reshape(()) * of_loss
            sums[1] += number_of(count) if is_counted else len(key.ids)
        for _ in range(self._passes_of_others):
            with self._precision.autocast():
                self._task.eval_step(self._model, batch)  # the other ranks gather parameters from this one
        loss_sum, samples = sum_over_ranks(sums, self._counted).tolist()
        if samples == 0:
            raise DataError(
                f"{type(self._task).__name__}.eval_step() counted 0 over all of eval_data(): the loss has no "
                "mean.\nReturn evaluation data in which there is something to count."
            )
        values = self._metrics.compute(self._counted, self._samples)
        return joined({"loss": loss_sum / samples}, values)


def check_reported(settings: TrainSettings, task: Task, reported: Collection[str] | None) -> None:
    """Check that an evaluation reports each metric that the job names.

    Args:
        reported: the names, or None if there is no evaluation data.

    Raises:
        JobError: it does not; lists the names.
    """
    name = type(task).__name__
    for key, metric in settings.required_metrics.items():
        if reported is None:
            raise JobError(
                f"{key} is {metric!r}, but {name}.eval_data() returned None: nothing is evaluated.\n"
                f"Return evaluation data, or remove {key.removesuffix('.metric')}."
            )
        if metric in reported:
            continue
        near = difflib.get_close_matches(metric, reported, n=1)
        remedy = f"Did you mean {near[0]!r}?" if near else f"Use one of them, or add {metric!r} to metrics()."
        if type(task).loss is not Task.loss and type(task).eval_step is Task.eval_step:
            remedy = (
                f"{name} overrides loss, so that eval_step returns no outputs and there are no metrics: "
                "override eval_step and metrics() as well."
            )
        raise JobError(
            f"{key} is {metric!r}, but an evaluation of {name} reports: {', '.join(reported)}.\n{remedy}"
        )
