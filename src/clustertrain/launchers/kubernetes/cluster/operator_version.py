"""Which KubeRay operator a cluster has, and what to do if it is older than a field of a RayJob.

The API server refuses a field that the cluster's CRDs do not have, but its message names no version.
"""

from __future__ import annotations

from typing import Any

from clustertrain.errors import ClusterError
from clustertrain.launchers.kubernetes.cluster.kubectl import Kubectl

# The Deployment's label: of the Helm chart, and of the kustomization.
_SELECTOR = "app.kubernetes.io/name in (kuberay-operator, kuberay)"
# The newest field that clustertrain writes.
_NEWEST = "spec.preRunningDeadlineSeconds"
_REMEDY = (
    "Update the operator and its CRDs; Helm does not update CRDs: kubectl apply --server-side -k "
    "'https://github.com/ray-project/kuberay/ray-operator/config/crd?ref=VERSION'.\n"
    "Or leave the field out (start_deadline then has no effect): "
    "--set 'kubernetes.patches={spec: {preRunningDeadlineSeconds: null}}'"
)


def too_old(field: str, kubectl: Kubectl) -> str | None:
    """Which operator is installed, which version has the field, and how to submit without it, or None if the
    field is not the newest that clustertrain writes."""
    return f"The field is new in KubeRay 1.6. {installed(kubectl)}\n{_REMEDY}" if field == _NEWEST else None


def installed(kubectl: Kubectl) -> str:
    """A sentence on the operators of the cluster, by their images; none is known if the account may not list
    Deployments."""
    try:
        found = [_described(each) for each in kubectl.list("deployments", _SELECTOR, "--all-namespaces")]
    except ClusterError:
        found = []
    if not found:
        return "The operator's version is unknown."
    return f"The cluster has the operator {' and '.join(found)}."


def _described(deployment: dict[str, Any]) -> str:
    metadata, pod = deployment["metadata"], deployment["spec"]["template"]["spec"]
    images = ", ".join(each["image"] for each in pod["containers"])
    return f"{images} (Deployment {metadata['name']} in namespace {metadata['namespace']})"
