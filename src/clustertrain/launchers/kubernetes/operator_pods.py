"""The pods that the operator will create for a RayJob or RayCluster, checked by the API server in a dry run.

The API server accepts these objects without a look at their pods. If a LimitRange, Pod Security, a quota that
requires limits or an admission policy refuses them, a RayJob waits until its deadline.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from clustertrain.launchers.kubernetes.dry_run import CREATE, error_or_notes, refused_objects
from clustertrain.launchers.kubernetes.kubectl import Forbidden, Kubectl
from clustertrain.launchers.kubernetes.render.manifests import Manifest

# As KubeRay creates it; no field of a RayJob changes its amounts.
_WAIT_FOR_HEAD = {
    "name": "wait-gcs-ready",
    "resources": {
        "requests": {"cpu": "200m", "memory": "256Mi"},
        "limits": {"cpu": "200m", "memory": "256Mi"},
    },
}
# Refusals that are over when the pods are created: quotas.py computes the room in quotas without the pods
# that will be deleted, and controllers need a moment for a new namespace or quota.
_PASSING = ("exceeded quota", "status unknown for quota", 'serviceaccount "default" not found')


def check_pods(objects: Sequence[Manifest], kubectl: Kubectl) -> list[str]:
    """Have the API server check the pods of the RayJobs and RayClusters among the objects. Returns notes on
    what it did not check.

    Raises:
        NoAnswer: as `Kubectl.__call__`.
        RefusedByServer: the server refuses a pod. The message has its name, the rule and the remedy.
    """
    try:
        refused = refused_objects(kubectl, CREATE, [*pods_of(objects)])
    except Forbidden as error:
        return [f"note: the API server did not check the pods: {str(error).splitlines()[0]}"]
    lasting = [(pod, text) for pod, text in refused if not any(each in text for each in _PASSING)]
    return error_or_notes(lasting, kubectl)


def pods_of(objects: Sequence[Manifest]) -> Iterator[Manifest]:
    """A pod for each pod template. It has no account that the objects create, since a dry run does not create
    it."""
    accounts = {each["metadata"].get("name") for each in objects if each["kind"] == "ServiceAccount"}
    for each in objects:
        if each["apiVersion"].partition("/")[0] == "ray.io":
            for role, template in _templates(each.get("spec") or {}):
                yield _pod(each, role, template, accounts)


def _templates(spec: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The templates by role."""
    cluster = spec.get("rayClusterSpec") or spec
    if head := (cluster.get("headGroupSpec") or {}).get("template"):
        yield "head", head
    for number, group in enumerate(cluster.get("workerGroupSpecs") or ()):
        if group.get("template"):
            yield str(group.get("groupName", number)), _with_wait_for_head(group["template"])
    if submitter := spec.get("submitterPodTemplate"):
        yield "submitter", submitter


def _pod(owner: Manifest, role: str, template: Mapping[str, Any], accounts: set[str | None]) -> Manifest:
    about, given = owner["metadata"], template.get("metadata") or {}
    metadata = {key: given[key] for key in ("labels", "annotations") if given.get(key)}
    metadata["generateName"] = f"{about.get('name') or about.get('generateName')}-{role}-"
    if about.get("namespace"):
        metadata["namespace"] = about["namespace"]
    spec = dict(template.get("spec") or {})
    if spec.get("serviceAccountName") in accounts:
        del spec["serviceAccountName"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _with_wait_for_head(template: Mapping[str, Any]) -> dict[str, Any]:
    spec = template.get("spec") or {}
    main = (spec.get("containers") or [{}])[0]
    copied = {key: main[key] for key in ("image", "securityContext") if key in main}
    init = [*(spec.get("initContainers") or ()), {**_WAIT_FOR_HEAD, **copied}]
    return {**template, "spec": {**spec, "initContainers": init}}
