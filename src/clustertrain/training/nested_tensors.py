"""Nested containers with tensors, each tensor replaced."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from copy import copy
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch


def map_tensors(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """`value` with each tensor replaced, in nested dicts, lists, tuples, named tuples and dataclasses."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: map_tensors(item, function) for key, item in value.items()}
    if isinstance(value, UserDict):  # such as a batch of a tokenizer of transformers
        changed = copy(value)
        changed.update(map_tensors(value.data, function))
        return changed
    if isinstance(value, list | tuple):
        items = [map_tensors(item, function) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{f.name: map_tensors(getattr(value, f.name), function) for f in fields(value)}
        )
    return value
