"""What changes from step to step: what a checkpoint of a training has, and what a resume gets back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from clustertrain.training.model.building import load_weights
from clustertrain.training.model.restore_tensors import with_tensors
from clustertrain.training.preparing import Prepared
from clustertrain.training.ranks.distributed import gather_over_ranks
from clustertrain.training.ranks.host import SaveProgress
from clustertrain.training.ranks.rng import gather_rng, restore_rng
from clustertrain.training.step.counted import Counts
from clustertrain.training.step.not_finite import NotFinite
from clustertrain.training.step.running_loss import Meter
from clustertrain.training.task_state import TaskState
from clustertrain.training.values import State


class TrainingState:
    """The state of one rank.

    Attributes:
        position: after the last finished step.
        metrics: of the last evaluation; without evaluation data, the last loss.
        evaluation_due: a stop request came before the evaluation of this step.
    """

    def __init__(self, prepared: Prepared) -> None:
        self._prepared, self._rank_info = prepared, prepared.rank_info
        self.position = prepared.order.settle(prepared.order.start)
        self.metrics: dict[str, float] = {}
        self.evaluation_due = False
        self.of_task = TaskState(prepared.task, prepared.model)
        self.counts = Counts(prepared.task, prepared.rank_info)
        not_finite = NotFinite(prepared.model, prepared.precision)
        self.meter = Meter(prepared.rank_info, not_finite, self.counts)

    def load(
        self,
        saved: State,
        fill: Callable[[dict[str, torch.Tensor]], None],
        log: Callable[..., None],
    ) -> None:
        """Continue from the state of a checkpoint, with its random states if the number of ranks is the same.

        Args:
            fill: as Host.fill.
            log: writes a record of a kind.

        Raises:
            JobError: the model, the optimizer or the task does not take its part.
        """
        prepared, world_size = self._prepared, self._rank_info.world_size
        saved = with_tensors(saved, prepared.model, prepared.optimization.optimizer, fill)
        load_weights(prepared.task, prepared.model, saved["model"])
        prepared.optimization.load(saved)
        if begins_anew := self.of_task.load(saved):
            log("warning", text=begins_anew)
        log("note", text=prepared.optimization.lr_text(self.position.step))
        self.counts.load(saved)
        self.metrics = dict(saved["metrics"])
        self.evaluation_due = saved["evaluation_due"]
        losses = saved["losses"]  # (world_size, passes, 4), or none: those in the storage are summed
        self.meter.load(saved["meter"], losses[self._rank_info.rank] if losses.numel() else losses)
        random_states = saved["rng_of_ranks"]  # uint8 (world_size, bytes)
        if len(random_states) == world_size:
            restore_rng(random_states[self._rank_info.rank], self._rank_info.device)
            return
        log(
            "note",
            text=f"resumed at world size {world_size}, saved at {len(random_states)}: "
            "random states are reseeded, and the result is not bit-identical to an uninterrupted run",
        )

    def tensors(self) -> dict[str, Any]:
        """Return the parts of the state with the large tensors."""
        of_model = {"model": self._prepared.model.state_dict()}
        return {**of_model, **self.of_task.entry(), **self._prepared.optimization.state()}

    def whole(self) -> dict[str, Any]:
        """Return the state for a checkpoint; called on all ranks."""
        losses, split = self.meter.unflushed(), self._prepared.split
        of_ranks: dict[str, Any] = {"rng_of_ranks": gather_rng(self._rank_info)}
        if split is not None:
            of_ranks["data_of_ranks"] = split.states(self.position, self._rank_info)
        return {
            **self.tensors(),
            "metrics": self.metrics,
            "early_stop": self._prepared.early_stopping.state(),
            "evaluation_due": self.evaluation_due,
            "meter": self.meter.state(),
            "losses": gather_over_ranks(losses, self._rank_info) if losses.numel() else losses,
            "position": asdict(self.position),
            **self.counts.state(),
            **of_ranks,
        }

    def progress(self, reason: str, measured: dict[str, float]) -> SaveProgress:
        """Return how far the run is, for the manifest of a checkpoint.

        Args:
            reason: why this step is saved.
            measured: by an evaluation after this step.
        """
        return SaveProgress(
            step=self.position.step,
            epoch=self.position.epoch,
            samples_seen=self.position.samples_seen,
            world_size=self._rank_info.world_size,
            metrics=measured,
            reason=reason,
        )
