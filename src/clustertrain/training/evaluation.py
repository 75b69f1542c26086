"""One pass over the evaluation data: each sample counted once, whatever the number of ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from clustertrain.errors import JobError
from clustertrain.training.distributed import RankInfo, sum_over_ranks
from clustertrain.training.loading import Collate, Fetch, Loader
from clustertrain.training.metrics import compute_over_ranks
from clustertrain.training.precision import Precision
from clustertrain.training.rng import derive_seed, pack_rng, restore_rng, seed_all
from clustertrain.training.sampling import evaluation_order
from clustertrain.training.settings import TrainSettings
from clustertrain.training.task import Task


class Evaluation:
    """Evaluates the task's model on `dataset`; restores the model's mode and all random states."""

    def __init__(
        self,
        *,
        task: Task,
        model: nn.Module,
        dataset: Any,
        collate: Collate,
        batch_size: int,
        settings: TrainSettings,
        precision: Precision,
        rank_info: RankInfo,
    ) -> None:
        self._task, self._model, self._rank_info = task, model, rank_info
        self._precision = precision
        self._seed = settings.seed
        self._metrics = dict(task.metrics())
        # With fewer samples than ranks some ranks would have none, and torchmetrics cannot gather states
        # without a dtype: every rank then evaluates all of these samples by itself.
        self._counted = (
            rank_info if len(dataset) >= rank_info.world_size else replace(rank_info, rank=0, world_size=1)
        )
        for metric in self._metrics.values():
            if isinstance(metric, nn.Module):  # torchmetrics keep their states on a device
                metric.to(rank_info.device)
                _sync_over_ranks(metric, self._counted.world_size > 1)
        self._loader = Loader(
            Fetch(dataset, collate),
            evaluation_order(len(dataset), batch_size, self._counted.rank, self._counted.world_size),
            processes=settings.loader_workers,
            device=rank_info.device,
            reuse=True,
        )

    def run(self, step: int) -> dict[str, float]:
        """The mean loss and the metrics over all samples, the same on every rank; all of them call it."""
        random_states = pack_rng(self._rank_info.device)
        modes = [(module, module.training) for module in self._model.modules()]
        self._broadcast_buffers()
        seed_all(derive_seed(self._seed, step), self._rank_info.rank)
        self._model.eval()
        try:
            with (
                torch.no_grad()
            ):  # inference_mode would leave tensors in metrics that cannot be changed later
                return self._measure()
        finally:
            for module, mode in modes:
                module.training = mode
            restore_rng(random_states, self._rank_info.device)

    def _broadcast_buffers(self) -> None:
        """Broadcast rank 0's buffers: BatchNorm's running values differ between ranks."""
        if self._rank_info.world_size > 1:
            for buffer in self._model.buffers():
                dist.broadcast(buffer, src=0)

    def _measure(self) -> dict[str, float]:
        for metric in self._metrics.values():
            metric.reset()
        sums = torch.zeros(2, dtype=torch.float64, device=self._rank_info.device)  # loss × samples, samples
        for key, batch in self._loader:
            with self._precision.autocast():
                loss, outputs, targets = self._task.eval_step(self._model, batch)
            self._update_metrics(outputs, targets)
            sums[0] += loss.detach().reshape(()).double() * len(key.ids)
            sums[1] += len(key.ids)
        loss_sum, samples = sum_over_ranks(sums, self._counted).tolist()
        return {"loss": loss_sum / samples, **compute_over_ranks(self._metrics, self._counted)}

    def _update_metrics(self, outputs: Any, targets: Any) -> None:
        if outputs is None and self._metrics:
            name = type(self._task).__name__
            raise JobError(
                f"{name}.metrics() has {', '.join(self._metrics)}, but {name}.eval_step returns no outputs.\n"
                "Override eval_step to return (loss, outputs, targets)."
            )
        for metric in self._metrics.values():
            metric.update(outputs, targets)


def _sync_over_ranks(metric: nn.Module, sync: bool) -> None:
    """Set whether a torchmetrics metric, or each one of a collection, adds the states of other ranks."""
    parts: Iterable[Any] = metric.modules()
    for part in parts:
        if hasattr(part, "distributed_available_fn"):
            part.distributed_available_fn = lambda: sync
