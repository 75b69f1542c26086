"""Kubernetes: a job is checked, rendered as a RayJob and its objects, applied, and observed.

launcher.py      the launcher
submit.py        check, render, apply
render/          the objects of a job; pure
rules/           what the operator, the API server and queues refuse, without a cluster
dry_run.py       the API server checks every object before any is applied
preflight.py     what would keep a run from ever starting on this cluster
capacity.py      whether nodes and quotas can hold a run
look.py          read from the cluster where a run stands
state.py         where a run stands, from its storage, RayJob, queue, pods and events; pure
pod_problems.py  what keeps pods from running, a line each
status.py        `status`, `ls` and `submit --wait`
logs.py          `logs`
stop.py          `stop`
storage.py       commands that read the run's storage in the cluster
reader_pod.py    a short pod that reads the storage of a run whose pods are gone
kubectl.py       runs kubectl with the job's context and namespace
ray.py           how the driver reaches the Ray of its pods
in_pod/          the programs that run in pods
"""
