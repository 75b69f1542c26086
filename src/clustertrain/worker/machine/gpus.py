"""The GPUs of a rank, and whether torch can use those that a job requests; called on their node."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clustertrain.errors import ClusterError
from clustertrain.node.gpus import FABRIC, Gpu, driver_version, visible_gpus

# The oldest driver for each major version of CUDA: docs.nvidia.com/deploy/cuda-compatibility, "Minor Version
# Compatibility". NVIDIA's compatibility packages let some data-centre GPUs work with an older one.
_OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}


@dataclass(frozen=True)
class RankGpus:
    """The GPUs of one rank, and the versions of the libraries that it uses them with, or None if there is no
    such library in its torch."""

    gpus: tuple[Gpu, ...] = ()
    cuda: str | None = None
    nccl: str | None = None


def gpus_of_rank() -> RankGpus:
    """The GPUs of the calling process. Creates no CUDA context."""
    gpus = visible_gpus()
    if not gpus:
        return RankGpus()
    import torch

    has_nccl = torch.distributed.is_nccl_available()
    nccl = torch.cuda.nccl.version() if has_nccl else None  # type: ignore[no-untyped-call]  # torch's own
    return RankGpus(gpus, torch.version.cuda, ".".join(map(str, nccl)) if nccl else None)


def check_gpus(workers: int, each: int) -> None:
    """Refuse GPUs that torch cannot use before step 1: a run never falls back to the CPU silently.

    Raises:
        ClusterError: there are too few, the driver is too old for torch's CUDA, or torch's build has no code
            for a GPU; names value, rule and remedy.
    """
    import torch

    is_usable = torch.cuda.is_available()
    expected, found = workers * each, torch.cuda.device_count() if is_usable else 0  # NVML counts them, too
    gpus = visible_gpus()
    if found >= expected:
        _check_capability(gpus, torch.cuda.get_arch_list())
        return
    wanted = (
        f"{workers} workers × {each} GPUs = {expected} GPUs, "
        f"and torch can use {found} on {socket.gethostname()}.\n"
    )
    build = f"torch {torch.__version__} is built for CUDA {torch.version.cuda}"
    if reason := _old_driver(driver_version(), torch.version.cuda):
        raise ClusterError(
            f"{wanted}{build}, which {reason}.\n"
            "Install a newer driver, or a torch build for an older CUDA (pytorch.org/get-started)."
        )
    if gpus and is_usable:
        raise ClusterError(
            f"{wanted}The node gives this process {len(gpus)}: {', '.join(gpu.name for gpu in gpus)}.\n"
            f"Set resources so that a node needs at most {found} GPUs, or use nodes that have {expected}."
        )
    if gpus:
        error = _cuda_error()
        remedy = FABRIC if "system not yet initialized" in error else "Ask the administrators of the node."
        raise ClusterError(
            f"{wanted}The driver lists {len(gpus)}, and CUDA does not start: {error}\n{remedy}"
        )
    driver = Path("/proc/driver/nvidia/version")
    driver_text = driver.read_text().splitlines()[0] if driver.exists() else "no NVIDIA driver is loaded"
    raise ClusterError(
        f"{wanted}Driver: {driver_text}. {build}.\n"
        "Use a torch build that this driver supports, or set resources.gpus_per_worker to 0."
    )


def _cuda_error() -> str:
    """The error with which CUDA does not start, in a line."""
    import torch

    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]  # torch has no type for it
    except (RuntimeError, AssertionError) as error:
        return str(error).strip().partition("\n")[0]
    return "it gives no reason"


def _old_driver(driver: str | None, cuda: str | None) -> str | None:
    """Why the driver is too old for this CUDA, or None if it is not, or one of them is unknown."""
    if driver is None or cuda is None:
        return None
    oldest = _OLDEST_DRIVER.get(int(cuda.partition(".")[0]))
    if oldest is None or int(driver.partition(".")[0]) >= oldest:
        return None
    return f"needs driver {oldest} or newer, and this node has {driver}"


def _check_capability(gpus: Sequence[Gpu], built_for: Sequence[str]) -> None:
    """
    Raises:
        ClusterError: torch's build has no code for one of the GPUs: it would end in the first kernel.
    """
    for gpu in gpus:
        if built_for and not _has_code(gpu.capability, built_for):
            major, minor = gpu.capability
            raise ClusterError(
                f"{gpu.name} on {socket.gethostname()} has compute capability {major}.{minor} "
                f"(sm_{major}{minor}), and this torch has code for {', '.join(built_for)}.\n"
                "Install a torch build for this GPU (pytorch.org/get-started), or use other nodes."
            )


def _has_code(capability: tuple[int, int], built_for: Sequence[str]) -> bool:
    """sm_XY runs on the same major version with at least this minor one; compute_XY is compiled for any newer
    GPU when it is loaded. A letter after the number is for one GPU only, and for its family (f)."""
    for text in built_for:
        if (match := re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", text)) is None:
            continue
        code = int(match[2]), int(match[3])
        is_newer = code < capability and (match[1] == "compute" or code[0] == capability[0])
        if code == capability or (is_newer and match[4] != "a"):
            return True
    return False
