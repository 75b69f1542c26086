"""Builds the model on its device, in DDP or FSDP; checks the data sets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from inspect import signature
from itertools import chain
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from clustertrain.errors import JobError
from clustertrain.training.data.loader_kinds import dataset_of
from clustertrain.training.model.blocks import named_modules
from clustertrain.training.model.compiling import options_of
from clustertrain.training.model.initializing import Initialization, without_parameters
from clustertrain.training.model.recomputing import recomputing
from clustertrain.training.nested_tensors import dtype_name
from clustertrain.training.ranks.distributed import RankInfo, gather_objects
from clustertrain.training.ranks.dtensors import is_sharded
from clustertrain.training.ranks.rng import restoring_rng
from clustertrain.training.settings import TrainSettings
from clustertrain.training.task import Task
from clustertrain.training.task_errors import refusing

_SAID = 300  # characters of an error
# DDP's parameter has another name since torch 2.13, which warns of the old one.
_SYNC_BUFFERS = "broadcast_buffers"
if "forward_sync_buffers" in signature(DistributedDataParallel).parameters:
    _SYNC_BUFFERS = "forward_sync_buffers"


def divides(settings: TrainSettings, rank_info: RankInfo) -> bool:
    """Return whether the model is divided among the ranks."""
    return settings.strategy == "fsdp" and rank_info.world_size > 1


def make_model(task: Task, settings: TrainSettings, rank_info: RankInfo) -> nn.Module:
    """Return the task's model on the device, in training mode; for FSDP on the CPU, where `shard` finds it.

    Raises:
        JobError: it is not a module, is lazy, has no trainable parameters, does not load its own state, or
            the task does not initialize a parameter.
    """
    initializes = type(task).init_weights is not Task.init_weights
    with without_parameters() if initializes else nullcontext():
        model = task.model()
    name = f"{type(task).__name__}.model()"
    if not isinstance(model, nn.Module):
        raise JobError(f"{name} returned {type(model).__name__}, not an nn.Module.\nReturn the model itself.")
    if isinstance(model, DistributedDataParallel):  # in a second one the ranks' weights drift apart
        raise JobError(
            f"{name} returned a model in DistributedDataParallel, in which clustertrain wraps it itself.\n"
            "Return the model without it."
        )
    tensors = chain(model.named_parameters(), model.named_buffers())
    if lazy := next((key for key, tensor in tensors if is_lazy(tensor)), None):
        raise JobError(  # no checkpoint could be loaded into it
            f"{name} returned a model whose {lazy} has no shape yet: the layer is lazy.\n"
            "Give the layer its sizes, or call the model once in model(), with an input as of the data."
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        count = sum(1 for _ in model.parameters())
        raise JobError(
            f"{name} returned a {type(model).__name__} without parameters that need a gradient ({count} in "
            "all): there is nothing to train.\n"
            "Keep layers as attributes or in nn.ModuleList, and leave some of them unfrozen."
        )
    if settings.sync_batchnorm:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]  # torch's own
    if not divides(settings, rank_info):
        Initialization(task, model, settings.seed, rank_info.device).fill(model)
        model.to(rank_info.device)  # FSDP moves it block by block
        _load_own_state(name, model)
    return model.train()  # a pretrained model is often in evaluation mode


def wrap(
    task: Task, model: nn.Module, settings: TrainSettings, rank_info: RankInfo, world_size: int
) -> nn.Module:
    """Return `model`, compiled if configured, and in DDP if the run has several ranks.

    Its parameters stay the same tensors. A sharded model is returned as it is.
    """
    if is_sharded(model):
        return model
    if settings.activation_checkpointing != "none":
        for block in named_modules(task, model, settings)[0]:
            recomputing(model, block, settings.activation_checkpointing)
    module = model
    if settings.compile:
        module = cast(nn.Module, torch.compile(model, **options_of(settings.compile)))
    is_ddp = world_size > 1 and settings.strategy == "ddp" and dist.is_initialized()
    return _in_ddp(module, settings, rank_info) if is_ddp else module


def _in_ddp(module: nn.Module, settings: TrainSettings, rank_info: RankInfo) -> nn.Module:
    """Return `module` in DDP, in the process group of this process.

    A rank alone, in a rehearsal, sends nothing: a buffer may have a dtype that only NCCL sends.
    """
    is_alone = rank_info.world_size == 1
    sends_buffers = settings.ddp.broadcast_buffers and not is_alone
    buffers: dict[str, Any] = {} if sends_buffers else {_SYNC_BUFFERS: False}
    return DistributedDataParallel(
        module,
        device_ids=[rank_info.device] if rank_info.device.type == "cuda" else None,
        gradient_as_bucket_view=True,  # saves one copy of the gradients
        find_unused_parameters=settings.find_unused_parameters,
        bucket_cap_mb=settings.ddp.bucket_cap_mb,
        static_graph=settings.ddp.static_graph,
        init_sync=not is_alone,
        **buffers,
    )


def shard(task: Task, model: nn.Module, settings: TrainSettings, rank_info: RankInfo) -> str:
    """Divide the model among the ranks, if the strategy is FSDP and there are several.

    Returns:
        its blocks and their sizes in a sentence; "" if it is not divided.

    Raises: as `shard_model`.
    """
    if not divides(settings, rank_info):
        return ""
    from clustertrain.training.model.sharding import shard_model  # it imports much of torch.distributed

    return shard_model(task, model, settings, rank_info)


def exchange_if(last: bool, wrapped: nn.Module, settings: TrainSettings) -> AbstractContextManager[None]:
    """Return the context of a forward and backward pass, in which the ranks may exchange gradients.

    DDP exchanges them only in the `last` pass of a step. With FSDP ranks that hold different parts do so in
    each, because no rank has the memory for all gradients, unless the job says otherwise; with `hybrid` the
    nodes do so only in the last one.
    """
    if is_sharded(wrapped):
        cast(Any, wrapped).set_requires_all_reduce(last)
        cast(Any, wrapped).set_requires_gradient_sync(last or settings.fsdp.exchange_every_pass)
        return nullcontext()
    if last or not isinstance(wrapped, DistributedDataParallel):
        return nullcontext()
    return wrapped.no_sync()


@contextmanager
def discarding(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Discard the gradients, buffers and random numbers of the passes inside, also of one that fails.

    A cache that a pass has made or enlarged stays.
    """
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        with restoring_rng(device):
            yield
    finally:
        model.zero_grad(set_to_none=True)
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                if name in buffers and buffer.shape == buffers[name].shape:
                    buffer.copy_(buffers[name])


def _load_own_state(name: str, model: nn.Module) -> None:
    """Load the model's own state_dict, as each resume does.

    Raises:
        JobError: it fails, for example because a hook leaves frozen parameters out of state_dict().
    """
    try:
        model.load_state_dict(model.state_dict())
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())[:_SAID]
        raise JobError(
            f"{name} returned a model that does not load its own state_dict(): {said}\n"
            "No start could resume from its checkpoints: state_dict() has to have all that the model needs."
        ) from error


def load_weights(task: Task, model: nn.Module, weights: Mapping[str, Any]) -> None:
    """Load the weights and buffers of a checkpoint into the task's model.

    Raises:
        JobError: names, shapes or dtypes differ; names the parameters, or the first of another dtype, which
            torch itself would convert.
    """
    what = f"The checkpoint's weights do not fit {type(task).__name__}.model():"
    remedy = "Undo the change, or start over with --fresh, which keeps this run."
    for key, own in model.state_dict().items():
        saved: Any = weights.get(key)
        are_tensors = isinstance(own, torch.Tensor) and isinstance(saved, torch.Tensor)
        if are_tensors and saved.dtype != own.dtype:
            raise JobError(
                f"{what}\n{key} {tuple(saved.shape)} is {dtype_name(saved)} in the checkpoint, "
                f"and {dtype_name(own)} in the model\n{remedy}"
            )
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:  # torch lists all keys that are missing, unexpected or of another shape
        raise JobError(f"{what}\n{error}\n{remedy}") from error


def load_datasets(
    task: Task, data: Mapping[str, Path], rank_info: RankInfo, epochs: int | None
) -> tuple[Any, Any, int]:
    """Return (training data, evaluation data or None, the number of training samples).

    Raises:
        JobError: one of them raises, has no length or no items, or ranks have different lengths.
    """
    remedy = f"Its argument has the paths of the job's `data`: {', '.join(data) or 'none'}."
    with refusing(task, "train_data", remedy=remedy):
        training, size = dataset_of(task, "train_data", data, rank_info, epochs=epochs)
    with refusing(task, "eval_data", remedy=remedy):
        evaluation, evaluated = dataset_of(task, "eval_data", data, rank_info, epochs=epochs)
    of_ranks = gather_objects([size, evaluated], rank_info)
    if any(other != of_ranks[0] for other in of_ranks):
        raise JobError(
            f"The data differs in size between ranks; (training, evaluation) by rank: {of_ranks}.\n"
            "Every rank must return all of the data; clustertrain splits it among the ranks."
        )
    return training, evaluation, size
