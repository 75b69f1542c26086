"""The state of a run on Kubernetes.

view.py          reads the state of a run from the cluster and its storage
state.py         the state of a RayJob, from its queue, pods and events, and of its run; pure
pod_problems.py  why pods do not run, one line for each problem
lost_pods.py     lost nodes, and what containers printed last
last_known.py    what was read last of a storage that no pod can read now
reader_pod.py    a short-lived pod that reads the storage of a run whose pods are gone
run_storage.py   runs commands where the storage of a run is
first_word.py    what the cluster says first of a run that was just applied
"""
