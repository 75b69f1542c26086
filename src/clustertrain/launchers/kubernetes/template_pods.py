"""The pods that the operator would create of manifests, for a dry run.

The CRDs of Ray's kinds do not have the rules for pods, and an admission plugin sees a pod only when it is
created. So the API server accepts a RayJob whose pods it refuses. A dry run of pods with the same specs shows
its rules, Pod Security, quotas and limit ranges before that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from clustertrain.launchers.kubernetes.render.manifests import Manifest


def template_pods(documents: Sequence[Manifest]) -> list[Manifest]:
    """A pod for each pod template of the RayJobs and RayClusters among the documents."""
    accounts = {each["metadata"].get("name") for each in documents if each["kind"] == "ServiceAccount"}
    found = []
    for document in documents:
        if document["apiVersion"].partition("/")[0] == "ray.io":
            for role, template in _templates(document.get("spec") or {}):
                found.append(_pod(document, role, template, accounts))
    return found


def _templates(spec: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The templates by role."""
    cluster = spec.get("rayClusterSpec") or spec
    groups = [("head", cluster.get("headGroupSpec"))]
    groups += [
        (f"worker-{group.get('groupName', number)}", group)
        for number, group in enumerate(cluster.get("workerGroupSpecs") or ())
    ]
    for role, group in groups:
        if group and group.get("template"):
            yield role, group["template"]
    if spec.get("submitterPodTemplate"):
        yield "submitter", spec["submitterPodTemplate"]


def _pod(document: Manifest, role: str, template: Mapping[str, Any], accounts: set[str | None]) -> Manifest:
    """Without an account that the documents create, since a dry run does not create it."""
    about, given = document["metadata"], template.get("metadata") or {}
    prefix = f"{about.get('name') or about.get('generateName')}-{role}-"
    metadata = {key: given[key] for key in ("labels", "annotations") if given.get(key)}
    metadata |= {"generateName": prefix, **{key: about[key] for key in ("namespace",) if about.get(key)}}
    spec = dict(template.get("spec") or {})
    if spec.get("serviceAccountName") in accounts:
        spec.pop("serviceAccountName", None)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
