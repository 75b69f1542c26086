"""Checks whether torch can use the GPUs that a job requests; called on the node that has them."""

from __future__ import annotations

import socket
from pathlib import Path

from clustertrain.errors import ClusterError


def check_gpus(workers: int, each: int) -> None:
    """Refuse GPUs that torch cannot use before step 1: a run never falls back to the CPU silently.

    Raises:
        ClusterError: names driver, CUDA build and remedy.
    """
    import torch

    expected, found = workers * each, torch.cuda.device_count()
    if torch.cuda.is_available() and found >= expected:
        return
    driver = Path("/proc/driver/nvidia/version")
    driver_text = driver.read_text().splitlines()[0] if driver.exists() else "no NVIDIA driver is loaded"
    raise ClusterError(
        f"{workers} workers × {each} GPUs = {expected} GPUs, "
        f"and torch can use {found} on {socket.gethostname()}.\n"
        f"Driver: {driver_text}. torch {torch.__version__} is built for CUDA {torch.version.cuda}.\n"
        "Use a torch build that this driver supports, or set resources.gpus_per_worker to 0."
    )
