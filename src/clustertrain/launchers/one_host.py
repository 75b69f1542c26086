"""A run whose driver starts Ray on this host: its number of workers, and the environment of its driver."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from clustertrain.errors import ClusterError
from clustertrain.job.model import Job
from clustertrain.node import variables
from clustertrain.node.gpus import gpu_count
from clustertrain.node.installed import how_to_install, missing_for_training
from clustertrain.node.user_folders import home_folder, spool_base
from clustertrain.supervise.private_folder import memory_folder, temporary_folder, write_token

NO_RAY = "none"
"""The value of CLUSTERTRAIN_RAY with which the ranks run without Ray on this machine."""


def check_installed(host: str, key: str) -> None:
    """Check that this Python can train; submitting needs less.

    The key `key` of the job file names the Python.

    Raises:
        ClusterError: torch or Ray is not installed here.
    """
    if missing := missing_for_training():
        raise ClusterError(
            f"{sys.executable} on {host} has no {' and no '.join(missing)}.\n"
            f"{how_to_install('train')} Or set {key} to a Python that has both."
        )


def ray_address() -> str | None:
    """Return the address of the user's own Ray cluster, or None if the driver starts Ray on this machine."""
    return os.environ.get("RAY_ADDRESS") or None


def world_sizes_here(job: Job) -> list[int]:
    """Return the numbers of workers in [min, max] for which this machine has enough CPUs and GPUs.

    With the user's own Ray cluster, return all of them: the driver counts the CPUs and GPUs there.

    Raises:
        ClusterError: there is none; the message shows the arithmetic.
    """
    least, shape = job.world_sizes[0], job.resources
    if ray_address():
        return list(job.world_sizes)
    cpus, each = len(os.sched_getaffinity(0)), shape.cpus_per_worker
    sizes = [size for size in job.world_sizes if round(size * each, 6) <= cpus]
    if not sizes:
        fewer = f"resources.workers to {int(cpus / each)}, or " if int(cpus / each) else ""
        raise ClusterError(
            f"{least} workers × {each:g} CPUs = {least * each:g} CPUs, and this machine has {cpus}.\n"
            f"Set {fewer}resources.cpus_per_worker to {int(1000 * cpus / least) / 1000:g} to share the cores."
        )
    if not (of_worker := shape.gpus_per_worker) or (gpus := gpu_count()) is None:
        return sizes  # torch counts the GPUs, and refuses too few
    most = gpus // of_worker
    if most < least:
        lower = f"resources.workers to {most}" if most else f"resources.gpus_per_worker to at most {gpus}"
        raise ClusterError(
            f"{least} workers × {of_worker} GPUs = {least * of_worker} GPUs, and this process may use {gpus} "
            f"(CUDA_VISIBLE_DEVICES, /dev/nvidia*).\nSet {lower}, or make more GPUs visible."
        )
    return [size for size in sizes if size <= most]


def driver_environment(scratch: str | None, folder: Path, *, no_ray: bool = False) -> dict[str, str]:
    """Prepare the private folder `folder` of a driver, and return the driver's environment.

    `scratch`: the key of the job.
    """
    environment = {**os.environ, variables.RAY_DIR: str(folder)}
    if no_ray:
        environment[variables.RAY] = NO_RAY
    environment[variables.MEMORY_DIR] = str(memory_folder(folder))
    environment[variables.SPOOL] = str(spool_base())
    environment.setdefault("HOME", str(home_folder()))  # Ray needs one
    if scratch != "TMPDIR" and Path(os.environ.get("TMPDIR") or folder.parent) == folder.parent:
        environment["TMPDIR"] = str(temporary_folder(folder))
        kept = folder.parent / f"torchinductor_{os.getuid()}"  # what torch.compile has compiled
        environment.setdefault("TORCHINDUCTOR_CACHE_DIR", str(kept))
    if not ray_address():
        environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(write_token(folder))}
        environment.pop("RAY_AUTH_TOKEN", None)
    return environment
