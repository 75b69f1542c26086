"""Registers this machine as a launcher. It has no section of the job file."""

from clustertrain.job.launcher_plugins import Plugin

PLUGIN = Plugin("clustertrain.launchers.local.scheduler:SCHEDULER")
