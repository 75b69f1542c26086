"""Nested containers with tensors, each tensor replaced; names of dtypes."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from clustertrain.training.values import Batch


def map_tensors(value: Batch, function: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
    """Return `value` with each tensor replaced, as by `map_leaves`."""
    return map_leaves(value, lambda _, leaf: function(leaf) if isinstance(leaf, torch.Tensor) else leaf)


def map_leaves(value: Any, function: Callable[[str, Any], Any], name: str = "") -> Any:
    """Return `value` with `function(name, leaf)` in place of each leaf.

    The leaves are in nested dicts, lists, tuples, named tuples and dataclasses. The name of a leaf begins
    with the name of `value`: `outputs['boxes'][0].scores`.
    """
    if isinstance(value, dict):
        return {key: map_leaves(item, function, f"{name}[{key!r}]") for key, item in value.items()}
    if isinstance(value, UserDict):  # such as a batch of a tokenizer of transformers
        changed = copy(value)
        changed.update(map_leaves(value.data, function, name))
        return changed
    is_named_tuple = isinstance(value, tuple) and hasattr(value, "_fields")
    if is_named_tuple or (is_dataclass(value) and not isinstance(value, type)):
        names = value._fields if is_named_tuple else [field.name for field in fields(value)]
        parts = {each: map_leaves(getattr(value, each), function, f"{name}.{each}") for each in names}
        if is_named_tuple:
            return value._replace(**parts)
        changed = copy(value)  # without __init__, which need not take each field
        for each, part in parts.items():
            object.__setattr__(changed, each, part)  # it may be frozen
        return changed
    if isinstance(value, list | tuple):
        return type(value)([map_leaves(item, function, f"{name}[{i}]") for i, item in enumerate(value)])
    return function(name, value)


def dtype_name(value: Any) -> str:
    """Return the name of the dtype of a tensor or an array: "float32"."""
    return str(value.dtype).removeprefix("torch.")
