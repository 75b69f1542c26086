"""Registers SLURM as a launcher."""

from clustertrain.job.launcher_plugins import Plugin
from clustertrain.launchers.slurm.section import Slurm

_COMMANDS = ("sbatch", "squeue", "sinfo", "scontrol", "scancel", "sacct")
_REMEDY = "SLURM's commands are on the login nodes of its cluster: log in there, or add their folder to PATH."

PLUGIN = Plugin(
    "clustertrain.launchers.slurm.scheduler:SCHEDULER",
    section=Slurm,
    remedies=dict.fromkeys(_COMMANDS, _REMEDY),
    connect="clustertrain.launchers.slurm.ray:ray_cluster",
)
