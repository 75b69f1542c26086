"""Registers SLURM as a launcher."""

from clustertrain.job.launcher_plugins import Plugin
from clustertrain.launchers.slurm.section import Slurm

_COMMANDS = ("sbatch", "squeue", "sinfo", "scontrol", "scancel", "sacct")
_REMEDY = "SLURM's commands are on the login nodes of its cluster: log in there, or add their folder to PATH."

PLUGIN = Plugin(
    launcher="clustertrain.launchers.slurm.launcher:LAUNCHER",
    connect="clustertrain.launchers.slurm.ray:ray_cluster",
    section=Slurm,
    remedies=dict.fromkeys(_COMMANDS, _REMEDY),
)
