"""Registers this machine as a launcher. It has no section of the job file."""

from clustertrain.job.launcher_plugins import Plugin

PLUGIN = Plugin(
    launcher="clustertrain.launchers.local.launcher:LAUNCHER",
    connect="clustertrain.launchers.local.ray:ray_cluster",
)
