"""What a script's process is started with: its command and clustertrain's variables.

The variables also replace the references to them in the job's `args`, `resume_args` and `env`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from clustertrain.job.model import Job
from clustertrain.job.references import data_variable, filled
from clustertrain.job.source import script_file
from clustertrain.node import variables
from clustertrain.node.interpreter import interpreter_file


@dataclass(frozen=True)
class Program:
    """What runs in the process. `name`: as messages call it."""

    name: str
    argv: tuple[str, ...]


def program_of(job: Job, folders: Sequence[Path], args: Sequence[str]) -> Program:
    """Return the program of a job whose entry point is a script or a module.

    Raises:
        JobError: there is no such script or interpreter.
    """
    python = str(interpreter_file(job.interpreter)) if job.interpreter else sys.executable
    if job.module:
        return Program(job.module, (python, "-u", "-m", job.module, *args))
    script = script_file(folders, job.script or "")
    return Program(script.name, (python, "-u", str(script), *args))


def worker_variables(
    data: Mapping[str, Path], *, attempt: int, restart: int, checkpoints: str
) -> dict[str, str]:
    """Return clustertrain's variables for a script in this worker.

    `checkpoints`: the folder or URI for the script's own checkpoints.
    """
    return {
        **{data_variable(name): str(path) for name, path in data.items()},
        variables.CHECKPOINT_DIR: checkpoints,
        variables.ATTEMPT: str(attempt),
        variables.RESTART: str(restart),
    }


def python_variables(job: Job, folders: Sequence[Path]) -> dict[str, str]:
    """Return the variables with which its Python finds the code and its packages.

    $PYTHONPATH begins with the folders of the code. An interpreter of its own gets no other path of this
    process, whose packages belong to another environment; PATH begins with its folder, as after `activate`.
    """
    own = job.interpreter is not None
    inherited = os.environ.get("PYTHONPATH") if not own or "PYTHONPATH" in job.env else None
    found = {"PYTHONPATH": os.pathsep.join([*map(str, folders), *filter(None, [inherited])])}
    if job.interpreter is None:
        return found
    python = interpreter_file(job.interpreter)
    prefix = python.parent.parent
    return found | {
        "PYTHONHOME": "",
        "VIRTUAL_ENV": str(prefix) if (prefix / "pyvenv.cfg").is_file() else "",
        "PATH": os.pathsep.join([str(python.parent), *filter(None, [os.environ.get("PATH")])]),
    }


def fill_environment(job: Job, values: Mapping[str, str]) -> None:
    """Set the variables of the job's `env` in this process, with the values that they refer to."""
    os.environ.update({name: filled(text, values) for name, text in job.env.items()})


def script_arguments(job: Job, values: Mapping[str, str], *, resumes: bool) -> list[str]:
    """Return the arguments of a script; `resumes`: it left a checkpoint at an earlier start."""
    args = job.args if not isinstance(job.args, dict) else ()
    return [filled(text, values) for text in (*args, *(job.resume_args if resumes else ()))]
