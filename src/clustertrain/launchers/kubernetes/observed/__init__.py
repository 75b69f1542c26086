"""The state of a run on Kubernetes.

view.py          reads the state of a run from the cluster and its storage
state.py         the state of a RayJob, from its queue, pods and events, and of its run; pure
pod_problems.py  why pods do not run, one line for each problem
lost_pods.py     lost nodes, and what containers printed last
last_known.py    what was read last of a storage that no pod can read now
run_storage.py   runs commands where the storage of a run is: in its head's pod, or in a reader pod
first_word.py    what the cluster says first of a run that was just applied
"""
