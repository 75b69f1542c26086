"""The Kubernetes objects of a job, as plain dicts. Nothing here connects to a cluster.

manifests.py       all objects of a run
pods.py            the templates of its pods: head, workers, submitter, reader
amounts.py         requests and limits of their containers
network_policy.py  the NetworkPolicy: it allows the traffic that a run needs, and no other
patches.py         the job's patches of the RayJob
paths.py           paths in the pods for the paths of the submitting machine in a job file
"""
