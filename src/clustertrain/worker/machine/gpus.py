"""Whether torch can use the GPUs that a job requests; called on their node."""

from __future__ import annotations

import socket

from clustertrain.errors import ClusterError
from clustertrain.observe.explain.catalogue import RunKind, by_name


def check_gpus(workers: int, each: int) -> None:
    """Refuse GPUs that torch cannot use before step 1: a run never falls back to the CPU silently.

    Raises:
        ClusterError: there are too few, or none; names what torch says of that, and the remedy.
    """
    import torch

    # torch counts GPUs with NVML, also those that CUDA cannot use.
    expected, found = workers * each, torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found >= expected:
        return
    wanted = (
        f"{workers} workers × {each} GPUs = {expected} GPUs, "
        f"and torch can use {found} on {socket.gethostname()}.\n"
    )
    if found:
        raise ClusterError(
            f"{wanted}Set resources so that a node needs at most {found} GPUs, "
            f"or use nodes that have {expected}."
        )
    error, fabric = _cuda_error(), by_name()["gpu_fabric"]
    remedy = "Use a torch build that this driver supports, or set resources.gpus_per_worker to 0."
    if "system not yet initialized" in error:
        remedy = f"{fabric.cause} {fabric.change_for(RunKind())}"
    raise ClusterError(
        f"{wanted}torch {torch.__version__} is built for CUDA {torch.version.cuda}, "
        f"and says: {error}\n{remedy}"
    )


def _cuda_error() -> str:
    """Return the error with which CUDA does not start, in a line."""
    import torch

    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]  # torch has no type for it
    except (RuntimeError, AssertionError) as error:
        return str(error).strip().partition("\n")[0]
    return "it gives no reason"
