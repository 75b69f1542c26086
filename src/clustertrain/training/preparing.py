"""Builds what a training needs before its first step, in the same order on every rank.

This is the model, the data, the optimizer and the evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from clustertrain.training.data.loader_kinds import loader_of, split_of, weight_sums_of
from clustertrain.training.data.same_samples import differing_sample
from clustertrain.training.data.sampling import BatchSizes, Position, TrainOrder
from clustertrain.training.data.streaming import is_stream
from clustertrain.training.early_stop import EarlyStopping
from clustertrain.training.evaluation import Evaluation
from clustertrain.training.measured.profiling import check_profile
from clustertrain.training.model.building import divides, load_datasets, make_model, shard, wrap
from clustertrain.training.model.compiling import limit_recompiles
from clustertrain.training.model.unused_parameters import AwaitedGradients
from clustertrain.training.ranks.consistency import check_same_model
from clustertrain.training.ranks.distributed import RankInfo
from clustertrain.training.ranks.rng import seed_all
from clustertrain.training.settings import TrainSettings
from clustertrain.training.step.kernels import kernels_in_use
from clustertrain.training.step.optimization import Optimization
from clustertrain.training.step.precision import Precision
from clustertrain.training.task import Task
from clustertrain.training.task_errors import refusing
from clustertrain.training.values import State


class Prepared:
    """A training before its first step.

    Attributes:
        world_size: the number of ranks of the run.
        wrapped: `model` in DDP or FSDP, and compiled, if the settings say so.
        batches: of this rank, from `order.start` on.
        split: the training data, if it is a stream that splits itself by rank.
        warnings, notes: for the log; an empty one says nothing.
    """

    def __init__(
        self,
        task: Task,
        settings: TrainSettings,
        rank_info: RankInfo,
        data: Mapping[str, Path],
        *,
        saved: State | None,
        note: Callable[[str], None],
        world_size: int | None = None,
    ) -> None:
        """Prepare a training from its beginning, or from the state of a checkpoint. All ranks call it.

        Args:
            saved: the state of the checkpoint, or None.
            note: writes a line about the data to the log.
            world_size: the number of ranks of the run, if this process rehearses it alone.

        Raises:
            JobError: settings, task and data are inconsistent.
        """
        self.task, self.settings, self.rank_info = task, settings, rank_info
        self.world_size = world_size or rank_info.world_size
        # FSDP converts parameters and inputs itself, and autocast would convert some of them back.
        autocast = "fp32" if divides(settings, rank_info) else settings.precision
        self.precision = Precision(autocast, rank_info.device)
        limit_recompiles(settings.compile, note)
        seed_all(settings.seed, rank=0)  # the same weights, and the same synthetic data, on all ranks
        remedy = "Correct the model; `args` of the job are the arguments of the task."
        with refusing(task, "model", "init_weights", remedy=remedy):
            self.model = make_model(task, settings, rank_info)
        difference = check_same_model(self.model, f"{type(task).__name__}.model()", rank_info)
        remedy = "Name other blocks in train.fsdp.blocks or Task.blocks(), or set train.strategy: ddp."
        with refusing(task, "model", "blocks", "init_weights", remedy=remedy):
            sharding = shard(task, self.model, settings, rank_info)
        differing = self._prepare_data(data, saved, note)
        with refusing(task, "optimizer", "scheduler", remedy="Build it from the given model or optimizer."):
            self.optimization = Optimization(task, self.model, self.order, self.precision.scaler)
        self.wrapped = wrap(task, self.model, settings, rank_info, self.world_size)
        self.awaited = AwaitedGradients(task, self.model, settings, self.world_size)
        self.early_stopping = EarlyStopping(settings.early_stop, rank_info, saved)
        self.warnings = [self.order.limit_text, difference, differing]
        self.notes = [sharding, kernels_in_use(rank_info.device)]

    def _prepare_data(
        self, data: Mapping[str, Path], saved: State | None, note: Callable[[str], None]
    ) -> str | None:
        """Prepare order, batches and evaluation, and return a warning if the ranks have other samples."""
        task, settings, rank_info = self.task, self.settings, self.rank_info
        training, evaluation, size = load_datasets(task, data, rank_info, settings.epochs)
        sizes = BatchSizes.of(settings, self.world_size, size)
        start = Position.of(saved)
        with refusing(task, "sample_weights", remedy="Its argument is what train_data() returned."):
            sums = weight_sums_of(task, training, size)
        self.order = TrainOrder(settings, sizes, size, rank_info.rank, start, is_stream(training), sums)
        check_profile(self.order)
        datasets = {"train_data": training, "eval_data": evaluation}
        differing = differing_sample(task, datasets, settings.seed, rank_info)
        self.training_data = training
        self.split = split_of(task, training, saved, start, rank_info)
        self.batches = loader_of(task, self.split or training, self.order, rank_info, note)
        self.evaluation: Evaluation | None = None
        if evaluation is not None:
            with refusing(task, "metrics", remedy="Return metrics by name."):
                self.evaluation = Evaluation(
                    task, self.model, evaluation, self.order, precision=self.precision, rank_info=rank_info
                )
        return differing

    def is_over(self, position: Position) -> bool:
        """Return whether the run ends at this position."""
        return self.order.done(position) or bool(self.early_stopping.text)

    def why_early(self, position: Position) -> str:
        """Return why the run ends there, before its last step; empty if it does not."""
        return "" if self.order.done(position) else self.early_stopping.text
