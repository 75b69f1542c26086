"""The launchers. Each is a plug-in (job/launcher_plugins.py), in a folder here or in another distribution.

launcher.py      the commands of every launcher, over the operations of its scheduler
lookup.py        finds a launcher by its name
target.py        the run that a command names, and the way to its storage if only a cluster has that
elsewhere.py     the launcher of such runs: `logs`, `stop`, `exec` and `submit --wait`
check.py         checks the code of a job before it starts
resolve_run.py   finds the launcher of the run that a command names
known_runs.py    the runs that this user started, one small file each
listing.py       `clustertrain ls`: the runs of all launchers in one table
model.py         the model of a checkpoint, wherever its storage is
agent/           the program on each host of a job of several hosts
scheduler/       what a scheduler implements, and what is the same for all of them
source_state.py  the commit of a job's code, and what differs from it
shell.py         runs the commands of a scheduler, and starts runs in the background
one_host.py      a run whose driver starts Ray on this host
gpu_slices.py    slices of GPUs (MIG), as several schedulers name them
local/           this machine, or the Ray cluster of RAY_ADDRESS
slurm/           SLURM clusters
kubernetes/      Kubernetes clusters with KubeRay
"""
