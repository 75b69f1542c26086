"""Which GPU each rank has, from the event of a start of the workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from clustertrain.run.streams.history import ranks_of


def gpus_text(group: Mapping[str, Any]) -> str:
    """All GPUs of a start of the workers in one line, or empty without GPUs.

    Raises:
        KeyError, TypeError: the event lacks a field.
    """
    gpus = [gpu for rank in ranks_of(group) for gpu in rank.get("gpus", ())]
    if not gpus:
        return ""
    kinds = Counter((gpu["name"], gpu["driver"]) for gpu in gpus)
    parts = [f"{count} × {name}, driver {driver}" for (name, driver), count in kinds.items()]
    versions = [
        f"{name} {group[key]}" for key, name in (("cuda", "CUDA"), ("nccl", "NCCL")) if group.get(key)
    ]
    return ", ".join([*parts, *versions])


def gpu_rows(group: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """The rows of `status`: all GPUs, then those of each rank, or none without GPUs, and for an event that
    lacks a field."""
    try:
        if group is None or not (text := gpus_text(group)):
            return []
        rows = [("GPUs", text)]
        for rank in ranks_of(group):
            places = ", ".join(f"{gpu['uuid']} at {gpu['pci']}" for gpu in rank["gpus"])
            rows.append((f"rank {rank['rank']}", f"{rank['host']}: {places}"))
    except (KeyError, TypeError):
        return []
    return rows
