"""A rehearsal of a task in one process, before a cluster starts: one training batch, one evaluation batch.

It builds model, data, optimizer and scheduler as the loop does, and takes the first batch of the loop's rank
0, with the same seed. It does not compile the model, starts no loader processes and changes no weight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from clustertrain.training.data.loader_kinds import batch_fetch, dataset_of, draws_of, order_of, processes_of
from clustertrain.training.data.loading import sent_copy, to_device
from clustertrain.training.data.sampling import BatchSizes, Position
from clustertrain.training.evaluation import Evaluation, check_reported
from clustertrain.training.measured.profiling import check_profile
from clustertrain.training.model.blocks import find_blocks
from clustertrain.training.model.building import in_ddp, make_model
from clustertrain.training.model.model_calls import calling_model
from clustertrain.training.model.unused_parameters import check_gradients
from clustertrain.training.ranks.distributed import RankInfo
from clustertrain.training.ranks.rng import restoring_rng, seed_all
from clustertrain.training.saving import check_readable
from clustertrain.training.settings import TrainSettings
from clustertrain.training.step.counted import parts
from clustertrain.training.step.optimization import Optimization
from clustertrain.training.step.precision import Precision
from clustertrain.training.summed_loss import sum_warning
from clustertrain.training.task import Task, collate_of
from clustertrain.training.task_errors import check_loss, described, first_batch, refusing
from clustertrain.training.task_state import TaskState


def rehearse(
    task: Task,
    settings: TrainSettings,
    device: torch.device,
    data: Mapping[str, Path],
    *,
    world_size: int = 1,
    warn: Callable[[str], None] = lambda text: None,
) -> tuple[str, ...]:
    """Rehearse a run of `world_size` ranks in this process. In a process group, of one rank, the loss gets
    the model in DDP as in the run.

    The random states of this process are restored. On a CPU, for a job whose workers have GPUs, the caller
    replaces the settings that need a GPU: precision fp16, sync_batchnorm.

    Args:
        warn: gets what is probably a mistake, and no refusal.

    Returns:
        the names of an evaluation's values, as logged; empty without evaluation data.

    Raises:
        JobError: task, settings and data do not fit together; names the line of the user's code.
        MemoryError, torch.OutOfMemoryError, torch.AcceleratorError: of this machine, not of the job.
    """
    with restoring_rng(device):
        return _rehearse(task, settings, RankInfo(0, 0, 1, device), data, world_size=world_size, warn=warn)


def _rehearse(
    task: Task,
    settings: TrainSettings,
    rank_info: RankInfo,
    data: Mapping[str, Path],
    *,
    world_size: int,
    warn: Callable[[str], None],
) -> tuple[str, ...]:
    precision = Precision(settings.precision, rank_info.device)
    seed_all(settings.seed, rank=0)
    with refusing(
        task,
        "model",
        "init_weights",
        remedy="Correct the model; `args` of the job are the arguments of the task.",
    ):
        model = make_model(task, settings, rank_info)
        check_readable({"model": model.state_dict()})
        if settings.strategy == "fsdp" and world_size > 1:
            find_blocks(task, model, settings)
    remedy = f"Its argument has the paths of the job's `data`: {', '.join(data) or 'none'}."
    with refusing(task, "train_data", remedy=remedy):
        training_data, size = dataset_of(task, "train_data", data, rank_info, epochs=settings.epochs)
    with refusing(task, "eval_data", remedy=remedy):
        eval_data, _ = dataset_of(task, "eval_data", data, rank_info, epochs=settings.epochs)
    sizes = BatchSizes.of(settings, world_size, size)
    with refusing(task, "sample_weights", remedy="Its argument is what train_data() returned."):
        draws = draws_of(task, training_data, size)
    order = order_of(training_data, size, settings, sizes, rank=0, start=Position(), draws=draws)
    check_profile(order)
    with refusing(task, "optimizer", "scheduler", remedy="Build it from the given model or optimizer."):
        optimization = Optimization(task, model, order, precision.scaler)
    with refusing(task, "scheduler", remedy=""):
        check_readable(optimization.state())
    TaskState(task, model).rehearse()
    if processes := processes_of(training_data, settings.processes):
        sent_copy(batch_fetch(training_data, collate_of(task), ""), processes)
    key = next(iter(order))
    batch = first_batch(task, "train_data", training_data, key)
    remedy = f"The batch is {described(batch)}: it must fit the model, and the outputs must fit the loss."
    is_ddp = world_size > 1 and settings.strategy == "ddp"
    wrapped = in_ddp(model, settings, rank_info) if is_ddp and dist.is_initialized() else model
    with refusing(task, "loss", remedy=remedy):
        with precision.autocast(), calling_model(task, wrapped) if world_size > 1 else nullcontext():
            returned = task.loss(wrapped, to_device(batch, rank_info.device))
        check_loss(task, returned)
        loss, _ = parts(returned)
        precision.scaler.backward(loss * key.share)
    finds_unused = settings.find_unused_parameters or settings.ddp.static_graph
    if is_ddp and not finds_unused:
        check_gradients(task, model)
    model.zero_grad(set_to_none=True)
    batch = to_device(batch, rank_info.device)
    if text := sum_warning(task, model, batch, precision=precision, device=rank_info.device):
        warn(f"warning: {text}")
    names = None
    if eval_data is not None:
        with refusing(task, "metrics", remedy="Return metrics by name."):
            evaluation = Evaluation(
                task,
                model,
                eval_data,
                sizes.batch_size,
                replace(settings, loader_workers=0),
                precision=precision,
                rank_info=rank_info,
            )
        names = _rehearse_evaluation(task, evaluation)
    check_reported(settings, task, names)
    return names or ()


def _rehearse_evaluation(task: Task, evaluation: Evaluation) -> tuple[str, ...]:
    names = tuple(evaluation.of_one_batch())
    with refusing(task, "images", remedy="Return images by name: (channels, height, width)."):
        evaluation.images(0)
    return names
