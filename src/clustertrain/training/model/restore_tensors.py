"""The tensors of a checkpoint as the model and its optimizer need them: whole, or divided among the ranks.

A checkpoint of FSDP keeps divided tensors in files of their own; in the state that a launcher returns they
are tensors of the meta device, with shape and dtype. A checkpoint fits both strategies, and any number of
ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from clustertrain.training.ranks.dtensors import is_divided, map_state
from clustertrain.training.values import State


def with_tensors(
    state: State,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    fill: Callable[[dict[str, torch.Tensor]], None],
) -> dict[str, Any]:
    """Return the state with real tensors in `model` and `optimizer`, divided like their parameters.

    A tensor that does not fit the model stays on the meta device: loading it raises the error that names it.

    Args:
        fill: reads tensors of the checkpoint into those given, by their path in the state; on every rank.
    """
    targets: dict[str, torch.Tensor] = {}
    own = model.state_dict()
    parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def placed(path: str, saved: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        if not saved.is_meta:
            return _divided_like(saved, like)
        targets[path] = _empty(saved, like)
        return targets[path]

    def of_model(path: str, saved: torch.Tensor) -> torch.Tensor:
        like = own.get(path.removeprefix("model."))
        if not isinstance(like, torch.Tensor) or (like.shape, like.dtype) != (saved.shape, saved.dtype):
            return saved
        return placed(path, saved, like)

    def of_optimizer(path: str, saved: torch.Tensor) -> torch.Tensor:
        number = int(path.split(".")[2])
        return placed(path, saved, parameters[number] if number < len(parameters) else saved)

    restored = map_state(state["model"], of_model, "model")
    of_parameters = map_state(state["optimizer"]["state"], of_optimizer, "optimizer.state")
    if targets:
        fill(targets)
    return {**state, "model": restored, "optimizer": {**state["optimizer"], "state": of_parameters}}


def _divided_like(value: torch.Tensor, like: Any) -> torch.Tensor:
    """Divide a tensor that every rank has whole in the same way as `like`.

    It is unchanged if `like` is not divided, or has another shape.
    """
    if not is_divided(like) or value.shape != like.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def _empty(saved: torch.Tensor, like: Any) -> torch.Tensor:
    if not is_divided(like):
        return torch.empty_like(saved, device=like.device if not like.is_meta else "cpu")
    if saved.shape == like.shape:
        return torch.empty_like(like, dtype=saved.dtype)
    from torch.distributed.tensor import DTensor, Replicate

    mesh = like.device_mesh  # such as the row and column means of Adafactor
    values = torch.empty_like(saved, device=like.to_local().device)
    return DTensor.from_local(values, mesh, [Replicate()] * mesh.ndim, run_check=False)
