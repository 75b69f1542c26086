"""The state of a run on Kubernetes.

view.py         reads the state of a run from the cluster and its storage, and prints it
state.py        the `State` of a RayJob, from its queue, pods and events, and that of its run; pure
pods.py         the pods of a run, and the newest event of each that does not run; pure
run_storage.py  runs commands where the storage of a run is: in its head's pod, or in a reader pod
"""
