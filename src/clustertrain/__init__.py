"""One job file: the same PyTorch DDP training on a laptop, a SLURM cluster or Kubernetes, on Ray Train.

The public names:

    Task        a training described by its parts (model, data, loss, metrics); see training/task.py
    session     what a function with its own loop gets from the kit; see session.py
    load_job    reads and validates a job file; see job/file.py

They are imported when first used, so that `import clustertrain` stays light and the submit side never
pulls in torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from clustertrain.version import __version__

if TYPE_CHECKING:
    from clustertrain import session as session
    from clustertrain.job.file import load_job as load_job
    from clustertrain.training.task import Task as Task

__all__ = ["Task", "__version__", "load_job", "session"]

_HOMES = {"Task": "clustertrain.training.task", "load_job": "clustertrain.job.file"}


def __getattr__(name: str) -> Any:
    if name == "session":
        return import_module("clustertrain.session")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'clustertrain' has no attribute {name!r}")
