"""What the operator, the API server, Pod Security and queues refuse, said without a cluster.

check.py       applies every rule to a set of manifests
finding.py     what a rule looks at, and what it finds
names.py       names, labels and quantities
objects.py     ConfigMap, NetworkPolicy and the other objects beside a RayJob
rayjob.py      RayJobs
deletion.py    a RayJob's deletionStrategy
raycluster.py  the Ray cluster of a RayJob
pod.py         pod templates
security.py    the Pod Security Standard `restricted`
queue.py       Kueue, Volcano, YuniKorn and KAI
"""
