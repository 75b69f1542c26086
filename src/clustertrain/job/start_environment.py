"""Which variables a process has from its start, and which of a job's `env` are set in the process later.

The dynamic loader reads LD_LIBRARY_PATH and LD_PRELOAD when a process starts, OpenMP and MKL read theirs when
they are loaded, and Python reads PYTHONHASHSEED. So a worker's process, and the driver's, which imports the
same code, start with the variables. In the process all of `env` is set once more, with its exact values.

Every process that imports the user's code has one PYTHONHASHSEED: otherwise `enumerate(set(names))` would
give a class another number on another node, and after a resume.
"""

from __future__ import annotations

import os
import re
import sys

from clustertrain.job.model import Job
from clustertrain.job.references import with_values, without_references

# Ray starts its workers with the same Python, finds bash on the PATH, and reads the other names itself: with
# CUDA_VISIBLE_DEVICES, for example, it would number the GPUs of a worker differently.
_SET_LATER = re.compile(r"PYTHON(?!HASHSEED$).*|PATH|RAY_.*|.*_VISIBLE_DEVICES")
# What Ray passes on as it is, or replaces in the worker's process. Its logs have the text, and no secret.
_PASSED_BY_RAY = re.compile(r"([^$]|\$\{[A-Z_][A-Z0-9_]*\})*", re.DOTALL)
_HASH_SEED = "PYTHONHASHSEED"
_VISIBLE_GPUS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")  # of NVIDIA and AMD


def hash_seed(job: Job) -> dict[str, str]:
    """Return PYTHONHASHSEED: the seed of the training modulo 2^32, or what `env` sets.

    If `env` sets it to a reference, the value is set later; until then it is the seed.
    """
    value = job.env.get(_HASH_SEED, "$")
    seed = job.train.seed if job.train is not None else 0
    return {_HASH_SEED: str(seed % 2**32) if "$" in value else value}


def start_again_with_hash_seed(job: Job) -> None:
    """Start this process once more, with the job's PYTHONHASHSEED, unless it has that already."""
    variables = hash_seed(job.model_copy(update={"env": with_values(job.env, os.environ)}))
    if not variables.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **variables})


def start_environment(job: Job) -> dict[str, str]:
    """Return the variables with which a worker's process starts.

    For a script, none of `env` is among them: the script is a child process of the worker, and its libraries
    may differ from the libraries of Ray's Python.

    A variable whose value has a $ is among them only if the $ starts a plain ${NAME}, which Ray replaces.
    """
    if job.is_script:
        return hash_seed(job)
    return hash_seed(job) | {
        name: value
        for name, value in without_references(job.env).items()
        if _PASSED_BY_RAY.fullmatch(value) and not _SET_LATER.fullmatch(name)
    }


def driver_environment(job: Job) -> dict[str, str]:
    """Return the variables of `env` that are set in the driver, and that a Ray on its machine inherits."""
    return {
        name: value
        for name, value in without_references(job.env).items()
        if not (job.is_script and name.startswith("LD_"))
    }


def python_environment(job: Job) -> dict[str, str]:
    """Return the variables that Python reads when it starts, such as PYTHONPATH.

    The driver starts with them, and so do the check, and the ranks, which are forks of the driver.
    """
    variables = {} if job.is_script else without_references(job.env)
    return hash_seed(job) | {name: value for name, value in variables.items() if name.startswith("PYTHON")}


def without_gpus(job: Job) -> dict[str, str]:
    """Return variables that hide all GPUs from the processes of a job without GPUs.

    Ray itself hides GPUs only from workers that have some of them. `env` may set these variables.
    """
    if job.resources.gpus_per_worker:
        return {}
    return {name: "" for name in _VISIBLE_GPUS if name not in job.env}
