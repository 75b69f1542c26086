"""The pods that the operator will create for a RayJob, checked by the API server in a dry run.

The API server accepts a RayJob without a look at its pods. If a LimitRange, Pod Security, a quota that
requires limits or an admission policy refuses them, the RayJob waits until its deadline.
"""

from __future__ import annotations

from collections.abc import Iterator

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


def check_pods(rayjob: Manifest, kubectl: Kubectl) -> list[str]:
    """Have the API server check the pods. Returns notes on what it did not check.

    Raises:
        NoAnswer: as `Kubectl.__call__`.
        ClusterError: the server refuses a pod. The message has its name, the rule and the remedy.
    """
    try:
        refused = refused_objects(kubectl, CREATE, [*_pods_of(rayjob)])
    except Forbidden as error:
        return [f"note: the API server did not check the pods: {str(error).splitlines()[0]}"]
    lasting = [(pod, text) for pod, text in refused if not any(each in text for each in _PASSING)]
    return error_or_notes(lasting, kubectl)


def _pods_of(rayjob: Manifest) -> Iterator[Manifest]:
    spec = rayjob["spec"]
    cluster = spec["rayClusterSpec"]
    yield _pod(rayjob, "head", cluster["headGroupSpec"]["template"])
    for group in cluster.get("workerGroupSpecs", ()):
        yield _pod(rayjob, str(group["groupName"]), _with_wait_for_head(group["template"]))
    if "submitterPodTemplate" in spec:
        yield _pod(rayjob, "submitter", spec["submitterPodTemplate"])


def _pod(rayjob: Manifest, role: str, template: Manifest) -> Manifest:
    about = rayjob["metadata"]
    where = {"namespace": about["namespace"]} if "namespace" in about else {}
    metadata = {**template.get("metadata", {}), "generateName": f"{about['name']}-{role}-", **where}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def _with_wait_for_head(template: Manifest) -> Manifest:
    spec = template["spec"]
    main = spec["containers"][0]
    copied = {key: main[key] for key in ("image", "securityContext") if key in main}
    init = [*spec.get("initContainers", ()), {**_WAIT_FOR_HEAD, **copied}]
    return {**template, "spec": {**spec, "initContainers": init}}
