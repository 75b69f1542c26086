"""Every rank has the same model: compared before DDP wraps it, and with the optimizer's state at every save.

DDP averages gradients, not weights: it assumes that equal weights take equal steps on all ranks.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from clustertrain.errors import ClusterTrainError, JobError
from clustertrain.training.ranks.distributed import RankInfo, gather_objects, gather_over_ranks
from clustertrain.training.ranks.dtensors import is_sharded

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_PART = 1 << 22  # elements that are compared at once: 64 MiB beside the weights


class WeightsDiverged(ClusterTrainError):
    """The weights of the ranks, or the states of their optimizers, differ.

    It is raised on all ranks with the same message.
    """


def check_same_model(model: nn.Module, name: str, rank_info: RankInfo) -> str | None:
    """Compare the models that the ranks have built, before DDP copies rank 0's values to the others.

    Returns:
        a warning, if buffers have other values on another rank; parameters are drawn from the same seed, or
        loaded, and may differ.

    Raises:
        JobError: on all ranks, if parameters or buffers differ in name, shape or dtype.
    """
    if rank_info.world_size == 1:
        return None
    tensors = [*model.named_parameters(), *model.named_buffers()]
    own = [(key, tuple(t.shape), str(t.dtype)) for key, t in tensors]
    of_ranks = gather_objects(own, rank_info)
    for rank, found in enumerate(of_ranks):
        if found != of_ranks[0]:
            raise JobError(
                f"{name} built another model on rank {rank} than on rank 0: "
                f"{_difference(of_ranks[0], found)}.\n"
                "Training needs the same parameters on every rank. Build the model from `args` and the data, "
                "not from the rank, the host or random numbers of your own."
            )
    different = _first_difference({key: checksums(t) for key, t in model.named_buffers()}, rank_info)
    if different is None:
        return None
    rank, key = different
    return f"the buffer {key} of {name} has other values on rank {rank} than on rank 0; rank 0's are used"


def check_same_weights(
    model: nn.Module, optimizer: torch.optim.Optimizer, step: int, rank_info: RankInfo
) -> None:
    """Check that all ranks have the same weights and the same states of their optimizers.

    All ranks call it after the same step. It sends four numbers per parameter: two for its values, two for
    what the optimizer keeps for it. With FSDP there is nothing to compare: each rank has other parts.

    Raises:
        WeightsDiverged: on all ranks, naming the first rank and parameter.
    """
    if rank_info.world_size == 1 or is_sharded(model):
        return
    parameters = dict(model.named_parameters())
    values = {name: checksums(parameter) for name, parameter in parameters.items()}
    states = {
        f"the optimizer's state of {name}": _checksums_of_state(optimizer.state.get(p), p.device)
        for name, p in parameters.items()
    }
    if different := _first_difference(values | states, rank_info):
        rank, name = different
        raise WeightsDiverged(
            f"After step {step} the weights of rank {rank} differ from those of rank 0, first in {name}; "
            "they were not saved.\n"
            "Every rank must take the same optimizer step: look for random numbers or a condition on the "
            "rank in the optimizer or a callback, and for weights that are changed elsewhere. DDP does not "
            "average layers that were unfrozen after the start: give them a learning rate of 0 until then.\n"
            "Nodes with different processors may round differently: then set train.compare_weights_every: 0."
        )


def _difference(expected: list[Any], found: list[Any]) -> str:
    """Describe the first entry (name, shape, dtype) in which the two lists differ."""
    one, other = next((a, b) for a, b in zip_longest(expected, found) if a != b)
    return f"{_described(other)} instead of {_described(one)}"


def _described(entry: Any) -> str:
    if entry is None:
        return "no more parameters"
    key, shape, dtype = entry
    return f"{key} {tuple(shape)} {dtype.removeprefix('torch.')}"


def _first_difference(checksums: dict[str, torch.Tensor], rank_info: RankInfo) -> tuple[int, str] | None:
    """Return (rank, name) of the first of the checksums, int64 (2,) by name, that differs from rank 0's.

    The names are the same on all ranks.
    """
    if not checksums:
        return None
    own = torch.stack([each.to(rank_info.device) for each in checksums.values()])
    of_ranks = gather_over_ranks(own, rank_info)
    for rank in range(1, rank_info.world_size):
        differs = (of_ranks[rank] != of_ranks[0]).any(dim=1)
        if differs.any():
            return rank, list(checksums)[int(differs.nonzero()[0])]
    return None


def _checksums_of_state(state: Any, device: torch.device) -> torch.Tensor:
    """Return checksums of the tensors in an optimizer's state, int64 (2,) on the device.

    A rank may keep something that the others do not, so their number is not compared itself.
    """
    sums = torch.zeros(2, dtype=torch.int64, device=device)
    for value in tree_leaves(state):
        if isinstance(value, torch.Tensor):
            sums += checksums(value).to(device)
    return sums


def checksums(tensor: torch.Tensor) -> torch.Tensor:
    """Return sums over the bits of the elements, and over their squares, modulo 2^64: int64 (2,).

    Integers add up to the same in any order, so equal tensors have equal sums on every device.
    """
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    sums = torch.zeros(2, dtype=torch.int64, device=flat.device)
    for part in flat.view(_INTEGERS[flat.element_size()]).split(_PART):  # type: ignore[no-untyped-call]  # torch's own lacks types
        bits = part.to(torch.int64)
        sums += torch.stack([bits.sum(), (bits * bits).sum()])
    return sums
