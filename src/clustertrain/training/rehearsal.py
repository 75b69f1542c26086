"""A rehearsal of a task in one process, before a cluster starts: one training batch, one evaluation batch.

It builds model, data, optimizer and scheduler as the loop does, and takes the first batch of the loop's rank
0, with the same seed. It does not compile the model, starts no loader processes and changes no weight.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from clustertrain.training.data.loader_kinds import batch_fetch, order_of, size_of
from clustertrain.training.data.loading import check_pickles, to_device
from clustertrain.training.data.sampling import BatchSizes, Position
from clustertrain.training.evaluation import Evaluation, check_reported
from clustertrain.training.measured.profiling import check_profile
from clustertrain.training.model.blocks import find_blocks
from clustertrain.training.model.building import make_model
from clustertrain.training.model.unused_parameters import check_gradients
from clustertrain.training.ranks.distributed import RankInfo
from clustertrain.training.ranks.rng import pack_rng, restore_rng, seed_all
from clustertrain.training.settings import TrainSettings
from clustertrain.training.step.optimization import Optimization
from clustertrain.training.step.precision import Precision
from clustertrain.training.task import Task, collate_of
from clustertrain.training.task_errors import check_loss, described, first_batch, refusing


@dataclass(frozen=True)
class Rehearsal:
    """The result of a rehearsal without an error."""

    metrics: tuple[str, ...]  # the names of an evaluation's values, as logged; empty without evaluation data
    build_s: float  # model, data sets, optimizer and scheduler
    train_s: float  # the training batch: load, forward, backward
    eval_s: float  # the evaluation batch: load, forward, metrics; the images

    @property
    def seconds(self) -> float:
        return self.build_s + self.train_s + self.eval_s


def rehearse(
    task: Task,
    settings: TrainSettings,
    device: torch.device,
    data: Mapping[str, Path],
    *,
    world_size: int = 1,
) -> Rehearsal:
    """Rehearse a run of `world_size` ranks in this process, without a process group.

    The random states of this process are restored. On a CPU, for a job whose workers have GPUs, the caller
    replaces the settings that need a GPU: precision fp16, normalization sync.

    Raises:
        JobError: task, settings and data do not fit together; names the line of the user's code.
        MemoryError, torch.OutOfMemoryError, torch.AcceleratorError: of this machine, not of the job.
    """
    random_states = pack_rng(device)
    try:
        return _rehearse(task, settings, RankInfo(0, 0, 1, device), data, world_size)
    finally:
        restore_rng(random_states, device)


def _rehearse(
    task: Task, settings: TrainSettings, rank_info: RankInfo, data: Mapping[str, Path], world_size: int
) -> Rehearsal:
    started = time.perf_counter()
    precision = Precision(settings.precision, rank_info.device)
    seed_all(settings.seed, rank=0)
    with refusing(
        task,
        "model",
        "init_weights",
        remedy="Correct the model; `args` of the job are the arguments of the task.",
    ):
        model = make_model(task, settings, rank_info)
        if settings.strategy == "fsdp" and world_size > 1:
            find_blocks(task, model, settings)
    training_data, eval_data, size = _datasets(task, data, settings.epochs)
    sizes = BatchSizes.of(settings, world_size, size)
    order = order_of(training_data, size, settings, sizes, rank=0, start=Position())
    check_profile(settings.profile_steps, order)
    with refusing(task, "optimizer", "scheduler", remedy="Build it from the given model or optimizer."):
        optimization = Optimization(
            task=task,
            model=model,
            settings=settings,
            sizes=sizes,
            total_steps=order.total_steps,
            scaler=precision.scaler,
        )
    built = time.perf_counter()
    if settings.processes:
        check_pickles(batch_fetch(training_data, collate_of(task), ""), settings.processes)
    key = next(iter(order))
    batch = first_batch(task, "train_data", training_data, collate_of(task), key)
    remedy = f"The batch is {described(batch)}: it must fit the model, and the outputs must fit the loss."
    with refusing(task, "loss", remedy=remedy):
        with precision.autocast():
            loss = task.loss(model, to_device(batch, rank_info.device))
        check_loss(task, loss)
        optimization.backward(loss * key.share)
    if world_size > 1 and settings.strategy == "ddp" and not settings.find_unused_parameters:
        check_gradients(task, model)
    model.zero_grad(set_to_none=True)
    trained = time.perf_counter()
    names = None
    if eval_data is not None:
        with refusing(task, "metrics", remedy="Return metrics by name."):
            evaluation = Evaluation(
                task=task,
                model=model,
                dataset=eval_data,
                collate=collate_of(task),
                batch_size=sizes.batch_size,
                settings=replace(settings, loader_workers=0),
                precision=precision,
                rank_info=rank_info,
            )
        names = tuple(evaluation.of_one_batch())
        with refusing(task, "images", remedy="Return images by name: (channels, height, width)."):
            evaluation.images(0)
    for key_of_job, metric in settings.required_metrics.items():
        check_reported(key_of_job, metric, task, names)
    return Rehearsal(names or (), built - started, trained - built, time.perf_counter() - trained)


def _datasets(task: Task, data: Mapping[str, Path], epochs: int | None) -> tuple[Any, Any, int]:
    """(training data, evaluation data or None, the number of training samples)."""
    found, sizes = [], []
    for method in ("train_data", "eval_data"):
        remedy = f"Its argument has the paths of the job's `data`: {', '.join(data) or 'none'}."
        with refusing(task, method, remedy=remedy):
            dataset = getattr(task, method)(data)
            if dataset is not None or method == "train_data":
                name = f"{type(task).__name__}.{method}()"
                size = size_of(dataset, name, epochs=epochs, is_evaluation=method == "eval_data")
                sizes.append(size)
        found.append(dataset)
    return found[0], found[1], sizes[0]
