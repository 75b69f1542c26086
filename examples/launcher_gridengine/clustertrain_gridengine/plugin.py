"""Registers Grid Engine. In a job the driver starts Ray on its own host, as `clustertrain run` does."""

from clustertrain.job.launcher_plugins import Plugin
from clustertrain_gridengine.section import GridEngine

_REMEDY = "Grid Engine's commands are on its submit hosts: log in there, or add their folder to PATH."

PLUGIN = Plugin(
    launcher="clustertrain_gridengine.scheduler:LAUNCHER",
    connect="clustertrain.launchers.local.ray:ray_cluster",
    section=GridEngine,
    remedies=dict.fromkeys(("qsub", "qstat", "qdel"), _REMEDY),
)
