"""Reads values of objects of the cluster: what is not there, or is of another type, counts as missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def at(value: Any, *keys: str) -> Any:
    """Return the value at these keys, or None if a key is missing or one before the last is not a mapping."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def mapping(value: Any, *keys: str) -> Mapping[str, Any]:
    """Return the mapping at these keys, or an empty one."""
    found = at(value, *keys)
    return found if isinstance(found, Mapping) else {}


def items(value: Any, *keys: str) -> list[Any]:
    """Return the list at these keys, or an empty one."""
    found = at(value, *keys)
    return found if isinstance(found, list) else []
