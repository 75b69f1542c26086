"""The pods that the operator will create for a RayJob, checked by the API server in a dry run.

The API server accepts a RayJob without a look at its pods. If a LimitRange, Pod Security, a quota that
requires limits or an admission policy refuses them, the RayJob waits until its deadline.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from clustertrain.launchers.kubernetes.cluster.dry_run import CREATE, error_or_notes, refused_objects
from clustertrain.launchers.kubernetes.cluster.kubectl import Forbidden, Kubectl
from clustertrain.launchers.kubernetes.render.fields import at, items
from clustertrain.launchers.kubernetes.render.manifests import Manifest

# Containers as KubeRay adds them: no field of a RayJob changes their amounts.
_WAIT_FOR_HEAD = {
    "name": "wait-gcs-ready",
    "resources": {
        "requests": {"cpu": "200m", "memory": "256Mi"},
        "limits": {"cpu": "200m", "memory": "256Mi"},
    },
}
_SUBMITTER = {
    "name": "ray-job-submitter",
    "resources": {"requests": {"cpu": "500m", "memory": "200Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}},
}
# Refusals that are over when the pods are created: pods of an earlier RayJob still use the quota, and
# controllers need a moment for a new namespace or quota. `submit` reports the quota that the pods then meet.
_PASSING = ("exceeded quota", "status unknown for quota", 'serviceaccount "default" not found')


def check_pods(objects: Sequence[Manifest], kubectl: Kubectl) -> list[str]:
    """Have the API server check the pods of the RayJob among the objects. Returns notes on what it did not
    check.

    Raises:
        Unanswered: as `Kubectl.__call__`.
        ClusterError: the server refuses a pod. The message has its name, the rule and the remedy.
    """
    rayjob = next(each for each in objects if each["kind"] == "RayJob")
    pods = [_pod(rayjob["metadata"]["name"], *each) for each in _templates(rayjob["spec"])]
    try:
        refused = refused_objects(kubectl, CREATE, pods)
    except Forbidden as error:
        return [f"the API server did not check the pods: {str(error).splitlines()[0]}"]
    lasting = [(pod, text) for pod, text in refused if not any(each in text for each in _PASSING)]
    return error_or_notes(lasting, kubectl)


def _templates(spec: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The templates by role, with the containers that the operator adds. The RayJob has passed its rules."""
    cluster = spec["rayClusterSpec"]
    head, is_sidecar = cluster["headGroupSpec"]["template"], spec.get("submissionMode") == "SidecarMode"
    yield "head", _with(head, "containers", _SUBMITTER, "image") if is_sidecar else head
    for group in cluster["workerGroupSpecs"]:
        added = _with(group["template"], "initContainers", _WAIT_FOR_HEAD, "image", "securityContext")
        yield str(group.get("groupName")), added
    if submitter := spec.get("submitterPodTemplate"):
        yield "submitter", submitter


def _pod(owner: str, role: str, template: Mapping[str, Any]) -> Manifest:
    keys = [key for key in ("labels", "annotations") if at(template, "metadata", key)]
    metadata = {key: template["metadata"][key] for key in keys}
    metadata["generateName"] = f"{owner}-{role}-"
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": at(template, "spec")}


def _with(template: Mapping[str, Any], key: str, container: Manifest, *copied: str) -> dict[str, Any]:
    """The template with a container that has these fields of the pod's main container."""
    spec, main = template["spec"], template["spec"]["containers"][0]
    own = {**container, **{name: main[name] for name in copied if name in main}}
    return {**template, "spec": {**spec, key: [*items(spec, key), own]}}
