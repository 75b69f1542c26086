"""Checks whether the operator and the API server would accept manifests, before they are applied.

    check      every object of a file, or of a rendering that the user has patched
    to_error   the findings as the error of a command

The operator reports a refusal only in the status or an event. The API server refuses pods long after it has
accepted the RayJob. The rules are those of KubeRay 1.6.2 and 1.7.0, of Kubernetes 1.34 and of Kueue 0.14.
Schemas of CRDs are not among them: the cluster checks its own in a dry run (dry_run.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from clustertrain.errors import JobError
from clustertrain.launchers.kubernetes.rules.finding import By, Field, Finding
from clustertrain.launchers.kubernetes.rules.names import label_1123, metadata, subdomain
from clustertrain.launchers.kubernetes.rules.objects import (
    config_map,
    disruption_budget,
    network_policy,
    volume_claim,
)
from clustertrain.launchers.kubernetes.rules.raycluster import cluster_spec
from clustertrain.launchers.kubernetes.rules.rayjob import LONGEST_RAYCLUSTER, ray_name, rayjob

_SHOWN = 3
_RAY = ("ray.io/v1", "ray.io/v1alpha1")
# The kinds whose apiVersion is checked, and the valid versions of each.
_VERSIONS: Mapping[str, tuple[str, ...]] = {
    "RayJob": _RAY,
    "RayCluster": _RAY,
    "ConfigMap": ("v1",),
    "Secret": ("v1",),
    "PersistentVolumeClaim": ("v1",),
    "NetworkPolicy": ("networking.k8s.io/v1",),
    "PodDisruptionBudget": ("policy/v1",),
}
_WHO: Mapping[By, str] = {
    "api": "the API server refuses it",
    "operator": "the KubeRay operator refuses it",
    "pods": "the API server refuses its pods",
    "pod-security": "the API server refuses its pods",
    "kueue": "Kueue refuses it",
    "kai": "KAI's plugin of the operator refuses it",
    "nobody": "the cluster accepts it without an error",
}


def check(manifests: Sequence[Mapping[str, Any]], *, pod_security: bool = True) -> list[Finding]:
    """The findings in the manifests, object by object.

    Args:
        pod_security: whether the pods are for a namespace that enforces the standard `restricted`.
    """
    found: list[Finding] = []
    seen: set[tuple[str, str, str]] = set()
    for number, manifest in enumerate(manifests, 1):
        field = _object(manifest, number)
        found += [*_identity(field, seen), *_content(field, pod_security)]
    return found


def refusals(findings: Sequence[Finding]) -> list[Finding]:
    """The findings without the notes on fields that need a newer operator."""
    return [finding for finding in findings if finding.since is None]


def to_error(findings: Sequence[Finding]) -> JobError:
    """An error with the first findings. Each has the problem, what refuses it, and the remedy."""
    refused = refusals(findings)
    lines = []
    for finding in refused[:_SHOWN]:
        lines += [f"{finding.where} {finding.message} ({_WHO[finding.by]}).", f"  {finding.remedy}"]
    if len(refused) > _SHOWN:
        lines.append(f"These are the first {_SHOWN} of {len(refused)}.")
    return JobError("\n".join(lines))


def _object(manifest: Any, number: int) -> Field:
    """The manifest as a field, with its kind and name for messages."""
    field = Field("", "", manifest)
    kind, name = field.at("kind").text, field.at("metadata", "name").text
    return Field(f"{kind or 'Object'} {name or f'number {number}'}", "", manifest)


def _identity(field: Field, seen: set[tuple[str, str, str]]) -> Iterator[Finding]:
    """Rules for what every object has: kind, name, namespace, labels."""
    if not isinstance(field.value, Mapping):
        yield field.finding(f"is {field.shown}, and must be a mapping", "Check its indentation.", "api")
        return
    version, kind, about = field.at("apiVersion"), field.at("kind"), field.at("metadata")
    for key in (version, kind):
        if not key.text:
            yield key.finding("is missing", "Every object has an apiVersion and a kind.", "api")
    known = _VERSIONS.get(kind.text, ())
    if version.text and known and version.text not in known:
        message = f"is {version.shown}, and must be {' or '.join(known)} for a {kind.text}"
        yield version.finding(message, f"Write apiVersion: {known[0]}.", "api")
    name, namespace = about.at("name"), about.at("namespace")
    if not name.text and not about.at("generateName").text:
        yield name.finding("is missing", "Give the object a name.", "api")
    elif name.text and (problem := subdomain(name.text)):
        yield name.finding(f"is {name.shown}, and {problem}", "Rename it.", "api")
    if namespace.is_set and (problem := label_1123(namespace.text)):
        yield namespace.finding(f"is {namespace.shown}, and a namespace {problem}", "Correct it.", "api")
    yield from metadata(about)
    key_of_all = (kind.text, namespace.text, name.text)
    if name.text and key_of_all in seen:
        message = "occurs twice: the later one replaces the first"
        yield field.finding(message, "Rename one of them.", "nobody")
    seen.add(key_of_all)


def _content(field: Field, pod_security: bool) -> Iterator[Finding]:
    rules: dict[str, Callable[[Field], Iterator[Finding]]] = {
        "RayJob": partial(rayjob, pod_security=pod_security),
        "RayCluster": partial(_raycluster, pod_security=pod_security),
        "ConfigMap": config_map,
        "Secret": config_map,
        "PersistentVolumeClaim": volume_claim,
        "NetworkPolicy": network_policy,
        "PodDisruptionBudget": disruption_budget,
    }
    if rule := rules.get(field.at("kind").text):
        yield from rule(field)


def _raycluster(cluster: Field, pod_security: bool) -> Iterator[Finding]:
    yield from ray_name(cluster.at("metadata", "name"), LONGEST_RAYCLUSTER)
    yield from cluster_spec(cluster.at("spec"), cluster.at("metadata", "annotations"), pod_security)
