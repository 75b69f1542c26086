"""How many GPUs a process of this machine may use, without importing torch."""

from __future__ import annotations

import os
import re
from pathlib import Path

_DEVICES = Path("/dev")
_OF_A_GPU = re.compile(r"nvidia\d+")  # nvidiactl and nvidia-uvm are of the driver


def visible_gpus() -> int | None:
    """The number of GPUs in CUDA_VISIBLE_DEVICES or, without it, of NVIDIA's device files.

    None if it is unknown: on other vendors' machines and on WSL there are no such files. torch decides in
    the end whether it can use them (worker/machine/gpus.py).
    """
    files = sum(1 for path in _DEVICES.iterdir() if _OF_A_GPU.fullmatch(path.name))
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return files or None
    names = [name.strip() for name in chosen.split(",")]
    names = names[: next((i for i, name in enumerate(names) if name in ("", "-1")), len(names))]
    are_numbers = all(name.isdigit() for name in names)  # else UUIDs; one GPU may have several MIG devices
    return min(len(names), files) if are_numbers and files else len(names)
