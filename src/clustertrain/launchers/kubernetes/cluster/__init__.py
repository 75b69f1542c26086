"""Asks the cluster before and while a run is applied.

kubectl.py        runs kubectl with the job's context and namespace
pod_layout.py     how many nodes a job with GPUs runs on, where the job does not say
node_room.py      how many worker pods the nodes hold; pure
preflight.py      checks that the image fits, and that what the job names exists
dry_run.py        the API server checks every object before any is applied
operator_pods.py  the API server checks the pods that the operator will create
job_keys.py       the keys of a job file that decide what a refusal names
"""
