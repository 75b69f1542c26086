"""FSDP: parameters, gradients and the optimizer's state divided among the ranks (torch's fully_shard).

A rank keeps its part of each parameter. Before a block's forward and backward pass it gathers the block's
whole parameters, and frees them afterwards.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.modules.batchnorm import _BatchNorm

from clustertrain.errors import ClusterError
from clustertrain.training.model.blocks import find_blocks, listed_blocks
from clustertrain.training.model.compiling import options_of
from clustertrain.training.model.initializing import Initialization
from clustertrain.training.model.recomputing import recomputing
from clustertrain.training.ranks.distributed import RankInfo, gather_objects
from clustertrain.training.settings import TrainSettings
from clustertrain.training.task import Task


def shard_model(task: Task, model: nn.Module, settings: TrainSettings, rank_info: RankInfo) -> str:
    """Divide the model in place among the ranks, block by block: only one block is whole on a GPU at a time.

    Returns:
        its blocks and their sizes in a sentence.

    Raises:
        JobError: it has no such blocks, or the task does not initialize a parameter.
        ClusterError: `hybrid`, and the nodes have different numbers of ranks.
    """
    blocks = find_blocks(task, model, settings)
    text = listed_blocks(model, blocks)
    mesh = _mesh(settings, rank_info)
    initialization = Initialization(task, model, settings.seed, rank_info.device)
    policy = of_model = MixedPrecisionPolicy()
    if settings.precision == "bf16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        of_model = replace(policy, output_dtype=torch.float32)  # the loss is computed in fp32
        for module in list(model.modules()):
            if isinstance(module, _BatchNorm) and module is not model:  # as its running values are fp32
                initialization.fill(module)
                fully_shard(module, mesh=mesh, mp_policy=MixedPrecisionPolicy(cast_forward_inputs=False))
    in_order = [name for name, _ in model.named_modules()]
    last = max((block.name for block in blocks), key=in_order.index, default="")
    for block in blocks:
        module = block.module
        if isinstance(module, FSDPModule):
            continue
        initialization.fill(module)
        module = recomputing(model, module, settings.activation_checkpointing)
        if settings.compile:
            module.compile(**options_of(settings.compile))
        reshards = settings.fsdp.reshard_after_forward and block.name != last  # its backward pass comes next
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=reshards)
    initialization.fill(model)
    fully_shard(model, mesh=mesh, mp_policy=of_model)
    if settings.find_unused_parameters:
        cast(Any, model).set_reduce_scatter_unused_params(True)
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)  # DDP does this for itself
    return f"FSDP ({settings.fsdp.shard}, {rank_info.world_size} ranks): {text}"


def _mesh(settings: TrainSettings, rank_info: RankInfo) -> DeviceMesh:
    """Return a mesh with all ranks in one dimension, or with `hybrid` in (nodes, ranks of a node).

    With `hybrid` the model is sharded within a node.
    """
    device, world_size = rank_info.device.type, rank_info.world_size
    if settings.fsdp.shard == "full":
        return init_device_mesh(device, (world_size,), mesh_dim_names=("shard",))
    per_node = ranks_per_node(gather_objects(rank_info.local_rank, rank_info))
    return init_device_mesh(device, (world_size // per_node, per_node), mesh_dim_names=("replicate", "shard"))


def ranks_per_node(local_ranks: list[int]) -> int:
    """Return the number of ranks of each node, from the local ranks of all ranks in their order.

    Raises:
        ClusterError: nodes have different numbers of ranks, or the ranks of a node are not consecutive.
    """
    per_node = max(local_ranks) + 1
    if local_ranks == list(range(per_node)) * (len(local_ranks) // per_node):
        return per_node
    raise ClusterError(
        f"train.fsdp.shard is hybrid, which needs equally many ranks on each node; the local ranks in their "
        f"order are {local_ranks}.\nUse nodes with equally many workers, or set train.fsdp.shard: full."
    )
