"""The launchers: each one is a folder, and its module is imported at its first use.

launcher.py      the interface of every launcher
check.py         checks the code of a job before it starts
find.py          finds the launcher of the run that a command names
known_runs.py    the runs that this user started, one small file each
listing.py       `clustertrain ls`: the runs of all launchers in one table
from_storage.py  the common part of the launchers that read the storage on this machine
stop.py          requests a stop by a file in the storage of the run
shell.py         runs the commands of a scheduler
local/           this machine, or the Ray cluster of RAY_ADDRESS
slurm/           SLURM clusters
kubernetes/      Kubernetes clusters with KubeRay
"""

LAUNCHERS = {
    "local": "clustertrain.launchers.local.launcher",
    "slurm": "clustertrain.launchers.slurm.launcher",
    "kubernetes": "clustertrain.launchers.kubernetes.launcher",
}
