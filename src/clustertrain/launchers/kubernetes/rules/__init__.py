"""Rules of the operator, the API server, Pod Security and queues, checked without a cluster.

check.py          applies every rule to a set of manifests
finding.py        the types of the rules: a field of a manifest, and a finding
names.py          names, labels and quantities
objects.py        ConfigMap, NetworkPolicy and other objects of a run
rayjob.py         RayJobs
deletion.py       a RayJob's deletionStrategy
raycluster.py     the Ray cluster of a RayJob
ray_fields.py     the types of the fields of Ray's kinds
pod.py            pod templates
pod_resources.py  requests and limits of their containers
pod_values.py     their fields that take a range of numbers or one of some words
schemas.py        the published schemas of Kubernetes' own kinds
security.py       the Pod Security Standards
queue.py          Kueue, Volcano, YuniKorn and KAI
"""
