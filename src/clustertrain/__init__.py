"""One job file: the same PyTorch DDP training on a laptop, a SLURM cluster or Kubernetes, on Ray Train.

The public names:

    Task         a training described by its parts (model, data, loss, metrics); see training/task.py
    session      the interface for a script, or a function with its own loop; see session.py
    load_job     reads and validates a job file; see job/file.py
    submit       submits a job to a scheduler; see api.py and docs/guides/sweeps-and-python.md
    run          trains on this machine
    open         the run of a job file, a folder or a name
    runs         the table of runs
    Run          a run: its status, logs, metrics and checkpoints
    __version__  the version of clustertrain

They are imported when first used: `import clustertrain` loads neither torch nor pydantic, and the submit side
works without torch.
"""

import importlib as _importlib
import typing as _typing

from clustertrain.node.version import __version__

if _typing.TYPE_CHECKING:
    from clustertrain import session
    from clustertrain.api import Run, open, run, runs, submit
    from clustertrain.job.file import load_job
    from clustertrain.training.task import Task

__all__ = ["Run", "Task", "__version__", "load_job", "open", "run", "runs", "session", "submit"]

_NOT_OF_API = {
    "Task": "clustertrain.training.task",
    "load_job": "clustertrain.job.file",
}


def __getattr__(name: str) -> _typing.Any:
    if name == "session":
        return _importlib.import_module("clustertrain.session")
    if name in __all__:
        return getattr(_importlib.import_module(_NOT_OF_API.get(name, "clustertrain.api")), name)
    raise AttributeError(f"module 'clustertrain' has no attribute {name!r}")
