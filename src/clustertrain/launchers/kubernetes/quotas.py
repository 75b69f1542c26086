"""Whether the ResourceQuotas of a namespace admit a run. Pure arithmetic.

The dry run compares each object with the quotas, but not their sum. So the sums are computed here: of the
requests and limits of all pods, and of the numbers of objects, also of those that the operator creates.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from clustertrain.launchers.kubernetes.capacity import Object, PodGroup, amount_of, amount_text

_RESOURCES = {
    "ConfigMap": "configmaps",
    "NetworkPolicy": "networkpolicies.networking.k8s.io",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "PodDisruptionBudget": "poddisruptionbudgets.policy",
    "RayJob": "rayjobs.ray.io",
}
_REMEDY = "Request less under resources and kubernetes.head, or wait until other runs have ended."
_REMEDY_COUNTS = "Wait until other runs have ended, or ask the cluster's administrator for a larger quota."


@dataclass(frozen=True)
class ObjectCounts:
    """How many objects of each resource a run creates, such as {"jobs.batch": 1}.

    Attributes:
        applied: by clustertrain, with the names.
        by_operator: by the operator.
    """

    applied: Mapping[str, Collection[str]] = field(default_factory=dict)
    by_operator: Mapping[str, int] = field(default_factory=dict)

    def new(self, existing: Mapping[str, Collection[str]]) -> dict[str, int]:
        """Without those that exist. What belongs to an earlier RayJob of the run is deleted with it."""
        counts = {key: len({*names} - {*existing.get(key, ())}) for key, names in self.applied.items()}
        return counts if existing.get("rayjobs.ray.io") else {**counts, **self.by_operator}


def object_counts(manifests: Sequence[Object]) -> ObjectCounts:
    """The objects of a run: those of its manifests, and what the operator creates for its RayJob."""
    applied: dict[str, list[str]] = {}
    for each in manifests:
        if resource := _RESOURCES.get(each["kind"]):
            applied.setdefault(resource, []).append(each["metadata"]["name"])
    spec = next(each["spec"] for each in manifests if each["kind"] == "RayJob")
    created = {"rayclusters.ray.io": 1, "services": 1}
    if spec["rayClusterSpec"].get("authOptions", {}).get("mode") == "token":
        created["secrets"] = 1
    if spec.get("submissionMode", "K8sJobMode") == "K8sJobMode":
        created["jobs.batch"] = 1
    return ObjectCounts(applied, created)


def counted(quotas: Sequence[Object]) -> set[str]:
    """The resources of which a quota counts the objects."""
    return {_counted(key) for quota in quotas for key in quota["spec"].get("hard", {})}


def why_no_quota(
    groups: Sequence[PodGroup],
    quotas: Sequence[Object],
    own: Sequence[PodGroup],
    objects: Mapping[str, int] | None = None,
) -> str | None:
    """Why a quota cannot admit the run; None if every quota can.

    Args:
        own: existing pods of this run. They are deleted before it starts, so what they use counts as free.
        objects: how many objects of each resource are created.
    """
    for quota in quotas:
        if quota["spec"].get("scopes") or quota["spec"].get("scopeSelector"):
            continue  # a quota with scopes counts only some pods
        used = quota.get("status", {}).get("used", {})
        for key, hard in quota["spec"].get("hard", {}).items():
            needed = [(group, _quota_use(group, key)) for group in groups]
            pods_total = Decimal(sum(group.pods * amount for group, amount in needed))
            count = (objects or {}).get(_counted(key), 0)
            returned = Decimal(sum(_quota_use(group, key) for group in own))
            limit, taken = amount_of(hard), amount_of(used.get(key)) - returned
            if (total := pods_total or Decimal(count)) and limit - taken < total:
                left_text, limit_text, used_text, needs = (
                    amount_text(key, x) for x in (limit - taken, limit, taken, total)
                )
                parts = f"{' + '.join(_parts(needed, key))} = " if pods_total else ""
                return (
                    f"ResourceQuota {quota['metadata']['name']} has {left_text} of {key} left "
                    f"({limit_text} - {used_text} used), and the run needs {parts}{needs}.\n"
                    f"{_REMEDY if pods_total else _REMEDY_COUNTS}"
                )
    return None


def _counted(key: str) -> str:
    return key.removeprefix("count/")


def _quota_use(group: PodGroup, key: str) -> Decimal:
    """What one of the pods uses under a key of a quota; 0 for keys that do not concern pods."""
    if _counted(key) == "pods":
        return Decimal(1)
    if key.startswith("limits."):
        return group.limits.get(key.removeprefix("limits."), Decimal(0))
    return group.requests.get(key.removeprefix("requests."), Decimal(0))


def _parts(needed: Sequence[tuple[PodGroup, Decimal]], key: str) -> Iterator[str]:
    for group, amount in needed:
        times = f"{group.pods} × " if group.pods != 1 else ""
        if amount:
            yield f"{times}{amount_text(key, amount)} ({group.role})"
