"""Which KubeRay operator a cluster has, and what to do if it is older than a field of a RayJob.

The API server refuses a field that the cluster's CRDs do not have, but its message names no version.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from clustertrain.errors import ClusterError
from clustertrain.launchers.kubernetes.cluster.kubectl import Kubectl

# The Deployment's label: of the Helm chart, and of the kustomization.
_SELECTOR = "app.kubernetes.io/name in (kuberay-operator, kuberay)"
_VERSION_LABEL = "app.kubernetes.io/version"
_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.\d+\S*)?")
_CRDS = (
    "kubectl apply --server-side -k 'https://github.com/ray-project/kuberay/ray-operator/config/crd?ref={}'"
)
# The newest fields that clustertrain writes: their version, and what a run loses without them.
_NEWEST = {"spec.preRunningDeadlineSeconds": ("KubeRay 1.6", "start_deadline then has no effect")}


@dataclass(frozen=True)
class Operator:
    """An operator's Deployment. `version`: such as v1.6.2."""

    version: str
    name: str
    namespace: str

    @property
    def text(self) -> str:
        return f"{self.version} (Deployment {self.name} in namespace {self.namespace})"


def installed(kubectl: Kubectl) -> list[Operator]:
    """The operators whose version can be read, or none if the account may not list Deployments."""
    try:
        deployments = kubectl.list("deployments", _SELECTOR, "--all-namespaces")
    except ClusterError:
        return []
    operators = []
    for deployment in deployments:
        metadata, pod = deployment["metadata"], deployment["spec"]["template"]["spec"]
        tags = [each["image"].rpartition(":")[2] for each in pod["containers"]]
        for version in (*tags, metadata.get("labels", {}).get(_VERSION_LABEL, "")):
            if _VERSION.fullmatch(version):
                operators.append(Operator(version, metadata["name"], metadata["namespace"]))
                break
    return operators


def too_old(field: str, kubectl: Kubectl) -> str | None:
    """Which operator is installed, which version has the field, and how to submit without it, or None if the
    field is not among the newest that clustertrain writes."""
    if field not in _NEWEST:
        return None
    since, loss = _NEWEST[field]
    operators = installed(kubectl)
    newer = [each for each in operators if _number(each.version) >= _number(since.removeprefix("KubeRay "))]
    if newer:
        version = f"v{newer[0].version.removeprefix('v')}"
        remedy = f"Its CRDs are older, since Helm does not update CRDs: {_CRDS.format(version)}"
    else:
        remedy = (
            f"Update the operator and its CRDs, or leave the field out ({loss}): "
            f"--set 'kubernetes.patches={_patch_without(field)}'"
        )
    return f"The field is new in {since}. {found(operators)}\n{remedy}"


def found(operators: Sequence[Operator]) -> str:
    """A sentence on the operators of the cluster."""
    versions = " and ".join(each.text for each in operators)
    return f"The cluster has the operator {versions}." if versions else "The operator's version is unknown."


def _patch_without(field: str) -> str:
    first, *inner = field.split(".")
    return f"{{{first}: {_patch_without('.'.join(inner)) if inner else 'null'}}}"


def _number(version: str) -> tuple[int, int]:
    match = _VERSION.fullmatch(version)
    return (int(match[1]), int(match[2])) if match else (0, 0)
