"""Kubernetes: a job is checked, rendered as a RayJob and its objects, applied, and observed.

plugin.py     registers the launcher
section.py    the section `kubernetes` of a job file
keys/         parts of that section, with their rules
launcher.py   the launcher
submit.py     the scheduler: plan, preflight, apply, states, cancel
render/       the objects of a job, and mistakes in them; pure
cluster/      asks the cluster: kubectl, its nodes, and what it would refuse
observed/     the state of a run, and its logs
status.py     `status`, `ls` and `submit --wait`
stop.py       `stop`
exec_in_pod.py  `exec`: a command in the pod of a rank
storage.py    the way to a run's storage in the cluster: commands that read it there
ray.py        how the driver connects to the Ray of its pods
in_pod/       the programs that run in pods
"""
