"""Where a job runs. Each launcher is a folder; its module is imported when it is asked for.

launcher.py      the interface of every launcher
find.py          which launcher has the run that a command names
known_runs.py    the runs that this user started, one small file each
listing.py       `clustertrain ls`: the runs of all launchers in one table
from_storage.py  what launchers share whose storage this machine sees
stop.py          ask a run to save and end, by a file in its storage
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
