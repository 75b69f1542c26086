"""Which variables of a job's `env` a process has from its start, and which are set in the process later.

The dynamic loader reads LD_LIBRARY_PATH and LD_PRELOAD when a process starts, OpenMP and MKL read theirs when
they are loaded, and Python reads PYTHONHASHSEED. So a worker's process, and the driver's, which imports the
same code, start with the variables. In the process all of `env` is set once more, with its exact values.
"""

from __future__ import annotations

import re

from clustertrain.job.model import Job
from clustertrain.job.references import without_references

# Ray starts its workers with the same Python, finds bash on the PATH, and reads the other names itself: with
# CUDA_VISIBLE_DEVICES, for example, it would number the GPUs of a worker differently.
_SET_LATER = re.compile(r"PYTHON(?!HASHSEED$).*|PATH|RAY_.*|.*_VISIBLE_DEVICES")
# What Ray passes on as it is, or replaces in the worker's process. Its logs have the text, and no secret.
_PASSED_BY_RAY = re.compile(r"([^$]|\$\{[A-Z_][A-Z0-9_]*\})*", re.DOTALL)
_VISIBLE_GPUS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")  # of NVIDIA and AMD


def start_environment(job: Job) -> dict[str, str]:
    """The variables of `env` with which a worker's process starts. None for a script: it is a child process
    of the worker, and its libraries may not be those of Ray's Python.

    Of the values with a $, only those with a plain ${NAME} are among them, which Ray replaces.
    """
    if job.is_script:
        return {}
    return {
        name: value
        for name, value in without_references(job.env).items()
        if _PASSED_BY_RAY.fullmatch(value) and not _SET_LATER.fullmatch(name)
    }


def driver_environment(job: Job) -> dict[str, str]:
    """The variables of `env` that are set in the driver, and that a Ray on its machine inherits."""
    return {
        name: value
        for name, value in without_references(job.env).items()
        if not (job.is_script and name.startswith("LD_"))
    }


def python_environment(job: Job) -> dict[str, str]:
    """The variables of `env` that Python reads when it starts, such as PYTHONPATH: the driver starts with
    them, and so do the check and the ranks, which are forks of it."""
    variables = {} if job.is_script else without_references(job.env)
    return {name: value for name, value in variables.items() if name.startswith("PYTHON")}


def without_gpus(job: Job) -> dict[str, str]:
    """Variables that hide all GPUs from the processes of a job without GPUs, which Ray hides only from
    workers that have some of them. `env` may set them."""
    if job.resources.gpus_per_worker:
        return {}
    return {name: "" for name in _VISIBLE_GPUS if name not in job.env}
