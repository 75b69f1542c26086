"""Builds what a training needs before its first step, in the same order on every rank.

This is the model, the data, the optimizer and the evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from clustertrain.training.data.loader_kinds import draws_of, loader_of, split_of
from clustertrain.training.data.same_samples import differing_sample
from clustertrain.training.data.sampling import BatchSizes, MicroBatch, Position, TrainOrder
from clustertrain.training.data.split_stream import SplitStream
from clustertrain.training.data.streaming import is_stream
from clustertrain.training.early_stop import EarlyStopping
from clustertrain.training.evaluation import Evaluation
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


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A training before its first step.

    Attributes:
        wrapped: `model` in DDP or FSDP, and compiled, if the settings say so.
        batches: of this rank, from `order.start` on.
        split: the training data, if it is a stream that splits itself by rank.
        warnings, notes: for the log; an empty one says nothing.
    """

    task: Task
    settings: TrainSettings
    rank_info: RankInfo
    precision: Precision
    model: nn.Module
    wrapped: nn.Module
    awaited: AwaitedGradients
    training_data: Any
    order: TrainOrder
    batches: Iterable[tuple[MicroBatch, Any]]
    split: SplitStream | None
    evaluation: Evaluation | None
    optimization: Optimization
    early_stopping: EarlyStopping
    warnings: list[str | None]
    notes: list[str]

    def is_over(self, position: Position) -> bool:
        """Return whether the run ends at this position."""
        return self.order.done(position) or bool(self.early_stopping.text)

    def why_early(self, position: Position) -> str:
        """Return why the run ends there, before its last step; empty if it does not."""
        return "" if self.order.done(position) else self.early_stopping.text


def prepare(
    task: Task,
    settings: TrainSettings,
    rank_info: RankInfo,
    data: Mapping[str, Path],
    *,
    saved: dict[str, Any] | None,
    note: Callable[[str], None],
    world_size: int | None = None,
) -> Prepared:
    """Prepare a training from its beginning, or from the state of a checkpoint. All ranks call it.

    Args:
        saved: the state of the checkpoint, or None.
        note: writes a line about the data to the log.
        world_size: the number of ranks of the run, if this process rehearses it alone.

    Raises:
        JobError: settings, task and data are inconsistent.
        ClusterError: the model is to be compiled, and the node has no compiler.
    """
    # FSDP converts parameters and inputs itself, and autocast would convert some of them back.
    autocast = "fp32" if divides(settings, rank_info) else settings.precision
    precision = Precision(autocast, rank_info.device)
    limit_recompiles(settings.compile, note)
    seed_all(settings.seed, rank=0)  # the same weights, and the same synthetic data, on all ranks
    remedy = "Correct the model; `args` of the job are the arguments of the task."
    with refusing(task, "model", "init_weights", remedy=remedy):
        model = make_model(task, settings, rank_info)
    difference = check_same_model(model, f"{type(task).__name__}.model()", rank_info)
    sharding = shard(task, model, settings, rank_info)
    training_data, eval_data, size = load_datasets(task, data, rank_info, settings.epochs)
    sizes = BatchSizes.of(settings, world_size or rank_info.world_size, size)
    start = Position.of(saved)
    with refusing(task, "sample_weights", remedy="Its argument is what train_data() returned."):
        draws = draws_of(task, training_data, size)
    order = TrainOrder(settings, sizes, size, rank_info.rank, start, is_stream(training_data), draws)
    datasets = {"train_data": training_data, "eval_data": eval_data}
    differing = differing_sample(task, datasets, settings.seed, rank_info)
    split = split_of(task, training_data, saved, start, rank_info)
    batches = loader_of(task, split or training_data, order, rank_info, note)
    evaluation = None
    if eval_data is not None:
        with refusing(task, "metrics", remedy="Return metrics by name."):
            evaluation = Evaluation(
                task, model, eval_data, sizes.batch_size, settings, precision=precision, rank_info=rank_info
            )
    with refusing(task, "optimizer", "scheduler", remedy="Build it from the given model or optimizer."):
        optimization = Optimization(task, model, order, precision.scaler)
    wrapped = wrap(task, model, settings, rank_info)
    return Prepared(
        task=task,
        settings=settings,
        rank_info=rank_info,
        precision=precision,
        model=model,
        wrapped=wrapped,
        awaited=AwaitedGradients(task, model, wrapped),
        training_data=training_data,
        order=order,
        batches=batches,
        split=split,
        evaluation=evaluation,
        optimization=optimization,
        early_stopping=EarlyStopping(settings.early_stop, rank_info, saved),
        warnings=[order.limit_text, difference, differing],
        notes=[sharding, kernels_in_use(rank_info.device)],
    )
