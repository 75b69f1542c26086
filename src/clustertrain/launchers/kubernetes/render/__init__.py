"""The Kubernetes objects of a job, as plain dicts; nothing here talks to a cluster.

manifests.py         all objects of a run
pods.py              the templates of its pods: head, workers, submitter
network_policies.py  the NetworkPolicies: every flow that a run has, and no other
paths.py             where pods find what the job file names by paths of the submitting machine
"""
