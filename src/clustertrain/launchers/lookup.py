"""Finds a launcher by its name: the scheduler of a plug-in, with the commands over it."""

from __future__ import annotations

from clustertrain.job.launcher_plugins import part_of, plugin_of, plugin_problem
from clustertrain.launchers.elsewhere import RemoteLauncher
from clustertrain.launchers.launcher import Launcher
from clustertrain.launchers.scheduler.interface import Scheduler


def launcher_of(name: str) -> Launcher:
    """Return the launcher of that name.

    Raises:
        JobError: there is no launcher of that name, or it cannot be used; the message lists the launchers, or
            names the distribution and the reason.
    """
    plugin = plugin_of(name)
    scheduler = part_of(name, plugin.scheduler)
    if not isinstance(scheduler, Scheduler):
        raise plugin_problem(name, f"{plugin.scheduler} is a {type(scheduler).__name__}, not a Scheduler")
    if plugin.reach:
        return RemoteLauncher(name, scheduler, part_of(name, plugin.reach))
    return Launcher(name, scheduler)
