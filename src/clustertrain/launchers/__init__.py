"""The launchers. Each is a plug-in (job/launcher_plugins.py), in a folder here or in another distribution.

launcher.py      the interface of every launcher
check.py         checks the code of a job before it starts
resolve_run.py   finds the launcher of the run that a command names
known_runs.py    the runs that this user started, one small file each
listing.py       `clustertrain ls`: the runs of all launchers in one table
from_storage.py  the common part of the launchers that read the storage on this machine
model.py         the model of a checkpoint, wherever its storage is
stop.py          requests a stop by a file in the storage of the run
scheduler/       the common part of the launchers that submit to a scheduler from this machine
shell.py         runs the commands of a scheduler
one_host.py      a run whose driver starts Ray on this host
gpu_slices.py    slices of GPUs (MIG), as several schedulers name them
local/           this machine, or the Ray cluster of RAY_ADDRESS
slurm/           SLURM clusters
kubernetes/      Kubernetes clusters with KubeRay
"""
