"""Slices of GPUs (MIG), which Kubernetes and SLURM name in the same way."""

from __future__ import annotations

import re

from clustertrain.errors import JobError

# nvidia.com/mig-1g.10gb on Kubernetes; 1g.10gb or a100_1g.10gb as the type of a gres on SLURM.
_SLICE = re.compile(r"(^|[-_.:/])\d+g\.\d+gb\b", re.IGNORECASE)


def is_slice_of_gpu(name: str) -> bool:
    """Return whether the name of a GPU's type or resource is a MIG profile: nvidia.com/mig-1g.10gb is one."""
    return _SLICE.search(name) is not None


def check_slices(key: tuple[str, str], name: str, workers: int, gpus_per_worker: int, together: str) -> None:
    """Check that one process at most would use slices of a GPU.

    Args:
        key: the key of the job file that names the slice.
        workers: in one pod or on one node.
        together: what these workers share: "pod" or "node".

    Raises:
        JobError: the slices are for several ranks, or several of them for one rank.
    """
    if not is_slice_of_gpu(name) or (workers <= 1 and gpus_per_worker <= 1):
        return
    raise JobError(
        f"{'.'.join(key)}: {name} is a slice of a GPU (MIG), and {workers} workers × {gpus_per_worker} per "
        f"worker = {workers * gpus_per_worker} slices in one {together}.\n"
        "A process can use one slice only, and NCCL refuses two ranks of a host on one GPU or its slices.\n"
        f"Use whole GPUs, or one worker with one slice in each {together}: workers = nodes, "
        "gpus_per_worker: 1.",
        at=key,
    )
