"""Tensors that are divided among ranks (DTensors), recognized without the import of torch.distributed.tensor.

That import takes 0.7 s of processor time, which a run without FSDP does not spend.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import nn


def is_divided(value: object) -> bool:
    """Return whether a value is a DTensor."""
    return isinstance(value, torch.Tensor) and type(value).__name__ == "DTensor"


def is_sharded(model: nn.Module) -> bool:
    """Return whether FSDP has divided the model."""
    return any(cls.__name__ == "FSDPModule" for cls in type(model).__mro__)


def local(tensor: Any) -> torch.Tensor:
    """Return this rank's part of a tensor, or the tensor itself if it is not divided."""
    part: torch.Tensor = tensor.to_local() if is_divided(tensor) else tensor
    return part


def whole(tensor: Any) -> torch.Tensor:
    """Return the whole of a tensor on every rank; it is a collective if the tensor is divided."""
    everything: torch.Tensor = tensor.full_tensor() if is_divided(tensor) else tensor
    return everything


def map_state(state: Any, change: Callable[[str, torch.Tensor], Any], path: str = "") -> Any:
    """Return nested dicts, lists and tuples with `change(path, tensor)` in place of each tensor.

    A path has the keys with dots between them. A number of numpy becomes Python's, which torch.load reads
    with weights_only.
    """
    if isinstance(state, torch.Tensor):
        return change(path, state)
    if isinstance(state, dict):
        kind = Counter if isinstance(state, Counter) else dict  # MultiStepLR counts its milestones in one
        paths = {k: f"{path}.{k}" if path else str(k) for k in state}
        changed = kind({of_python(k): map_state(v, change, paths[k]) for k, v in state.items()})
        return with_versions(changed, state)
    if isinstance(state, list | tuple):
        items = [map_state(v, change, f"{path}.{i}") for i, v in enumerate(state)]
        return items if isinstance(state, list) else tuple(items)
    return of_python(state)


def with_versions(tensors: dict[Any, Any], of: Any) -> dict[Any, Any]:
    """Return `tensors` with the versions of the modules that the state_dict `of` has.

    load_state_dict passes them on, and a module converts what has none as an old state. Without versions
    `tensors` is returned as it is.
    """
    if (versions := getattr(of, "_metadata", None)) is None:
        return tensors
    state_dict: Any = OrderedDict(tensors)
    state_dict._metadata = versions
    return cast("dict[Any, Any]", state_dict)


def of_python(value: Any) -> Any:
    """Return a number of numpy as Python's, and another value as it is."""
    return value.item() if isinstance(value, np.generic) else value
