"""Where a job runs. Each launcher is a folder; its module is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from clustertrain.errors import JobError

if TYPE_CHECKING:
    from clustertrain.launchers.launcher import Launcher

LAUNCHERS = {
    "local": "clustertrain.launchers.local.launcher",
    "slurm": "clustertrain.launchers.slurm.launcher",
    "kubernetes": "clustertrain.launchers.kubernetes.launcher",
}


def launcher_of(name: str) -> Launcher:
    """The launcher of that name.

    Raises:
        JobError: there is none; names those that there are.
    """
    if name not in LAUNCHERS:
        raise JobError(f"There is no launcher {name!r}.\nThe launchers are: {', '.join(LAUNCHERS)}.")
    launcher: Launcher = import_module(LAUNCHERS[name]).LAUNCHER
    return launcher
