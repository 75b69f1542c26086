"""Kubernetes: a job is checked, rendered as a RayJob and its objects, applied, and observed.

plugin.py     registers the launcher
section.py    the section `kubernetes` of a job file
keys/         parts of that section, with their rules
launcher.py   the launcher
submit.py     the scheduler: plan, preflight, apply, states, delete
render/       the objects of a job, and mistakes in them; pure
cluster/      asks the cluster: kubectl, its nodes, and what it would refuse
observed/     the state of a run
status.py     `status` and `ls`
storage.py    the way to a run's storage in the cluster: runs commands in its pods
ray.py        how the driver connects to the Ray of its pods
in_pod/       the programs that run in pods
"""
