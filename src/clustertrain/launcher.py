"""What a plug-in for another scheduler imports; docs/guides/new-scheduler.md is its page."""

from __future__ import annotations

from clustertrain.errors import ClusterError, JobError
from clustertrain.job.launcher_plugins import LauncherSection, Plugin
from clustertrain.job.values import Path, Seconds
from clustertrain.launchers.scheduler.interface import Scheduler, Sent, State
from clustertrain.launchers.scheduler.needs import Needs
from clustertrain.launchers.shell import CommandFailed, run

__all__ = [
    "ClusterError",
    "CommandFailed",
    "JobError",
    "LauncherSection",
    "Needs",
    "Path",
    "Plugin",
    "Scheduler",
    "Seconds",
    "Sent",
    "State",
    "run",
]
