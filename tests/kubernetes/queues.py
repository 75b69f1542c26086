"""A queue of Kueue, for a namespace of a test's own; what belongs to no namespace bears its name."""

KUEUE = "kueue.x-k8s.io/v1beta1"


def local_queue(namespace: str, cpus: float, *, preempts: bool = False) -> list[dict]:
    """The queue `team`, which has room for so many CPUs, and for all memory where it has any.

    `preempts`: whoever has a higher priority sends others away.
    """
    room = [{"name": "cpu", "nominalQuota": str(cpus)}, {"name": "memory", "nominalQuota": f"{cpus:g}Ti"}]
    group = {"coveredResources": ["cpu", "memory"], "flavors": [{"name": namespace, "resources": room}]}
    spec: dict = {"namespaceSelector": {}, "resourceGroups": [group]}
    if preempts:
        spec["preemption"] = {"withinClusterQueue": "LowerPriority"}
    local = {"name": "team", "namespace": namespace}
    return [
        {"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": namespace}, "spec": {}},
        {"apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": {"name": namespace}, "spec": spec},
        {"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": local, "spec": {"clusterQueue": namespace}},
    ]


def priority(name: str, value: int) -> dict:
    """A WorkloadPriorityClass, which belongs to no namespace."""
    return {"apiVersion": KUEUE, "kind": "WorkloadPriorityClass", "metadata": {"name": name}, "value": value}
