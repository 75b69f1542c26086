"""Which KubeRay operator a cluster has, and what to do if it is older than a field of a RayJob.

The API server refuses a field that the cluster's CRDs do not have, but its message names no version.
"""

from __future__ import annotations

import re
from typing import Any

from clustertrain.errors import ClusterError
from clustertrain.launchers.kubernetes.cluster.kubectl import Kubectl
from clustertrain.launchers.kubernetes.render.fields import at, items

# The Deployment's label: of the Helm chart, and of the kustomization.
_SELECTOR = "app.kubernetes.io/name in (kuberay-operator, kuberay)"
_VERSION = re.compile(r"v?\d+\.\d+(?:\.\d+\S*)?")
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
    """A sentence on the operators of the cluster; their version is unknown if the account may not list
    Deployments."""
    try:
        deployments = kubectl.list("deployments", _SELECTOR, "--all-namespaces")
    except ClusterError:
        deployments = []
    found = [
        f"{version} (Deployment {each['metadata']['name']} in namespace {each['metadata']['namespace']})"
        for each in deployments
        if (version := _version(each))
    ]
    return (
        f"The cluster has the operator {' and '.join(found)}."
        if found
        else "The operator's version is unknown."
    )


def _version(deployment: dict[str, Any]) -> str | None:
    """By the tag of the image, or by the label if that is no version."""
    containers = items(deployment, "spec", "template", "spec", "containers")
    given = [each["image"].rpartition(":")[2] for each in containers]
    given.append(at(deployment, "metadata", "labels", "app.kubernetes.io/version") or "")
    return next(filter(_VERSION.fullmatch, given), None)
