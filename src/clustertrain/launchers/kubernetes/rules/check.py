"""Checks whether the operator and the API server would accept manifests, before they are applied.

    check      every object of a file, or of a rendering that the user has patched
    refusals   the findings that the cluster, or a part of it, would refuse
    advice     the findings that nothing refuses
    to_error   the refusals as the error of a command

The operator reports a refusal only in the status or an event. The API server refuses pods long after it has
accepted the RayJob. The rules are those of KubeRay 1.6.2 and 1.7.0, of Kubernetes 1.34 and of Kueue 0.14.
Fields and types of Kubernetes' own kinds are checked with the published schemas (schemas.py); the cluster
checks those of CRDs in a dry run (dry_run.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
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
from clustertrain.launchers.kubernetes.rules.pod import pod_template
from clustertrain.launchers.kubernetes.rules.ray_fields import (
    CLUSTER_TYPES,
    JOB_TYPES,
    missing,
    unknown,
    unknown_words,
    wrong_types,
)
from clustertrain.launchers.kubernetes.rules.raycluster import cluster_spec
from clustertrain.launchers.kubernetes.rules.rayjob import LONGEST_RAYCLUSTER, ray_name, rayjob
from clustertrain.launchers.kubernetes.rules.schemas import (
    VERSION,
    Schemas,
    built_in,
    of_ray,
    schemas_of,
)
from clustertrain.launchers.kubernetes.rules.security import Level

_SHOWN = 3
_RAY = ("ray.io/v1", "ray.io/v1alpha1")
_RBAC = "rbac.authorization.k8s.io"  # its names may have colons
# The kinds that have rules, and the valid versions of each. Other groups may have kinds of the same names.
_VERSIONS: Mapping[str, tuple[str, ...]] = {
    "RayJob": _RAY,
    "RayCluster": _RAY,
    "ConfigMap": ("v1",),
    "Secret": ("v1",),
    "PersistentVolumeClaim": ("v1",),
    "NetworkPolicy": ("networking.k8s.io/v1",),
    "PodDisruptionBudget": ("policy/v1",),
}
# Where Kubernetes' own kinds have their pod template.
_TEMPLATES: Mapping[str, tuple[str, ...]] = {
    "Pod": (),
    **dict.fromkeys(("DaemonSet", "Deployment", "Job", "ReplicaSet", "StatefulSet"), ("spec", "template")),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}
_WHO: Mapping[By, str] = {
    "api": "the API server refuses it when it is applied",
    "operator": "the KubeRay operator refuses it after it was applied",
    "pods": "the API server refuses its pods when the operator creates them",
    "pod-security": "Pod Security refuses its pods when the operator creates them",
    "kueue": "Kueue refuses it when it is applied",
    "kai": "KAI's plugin of the operator refuses it after it was applied",
    "nobody": "the cluster accepts it without an error",
}
# The Pod Security Standard that a namespace enforces; the name is empty for the default namespace.
Enforced = Callable[[str], Level]


def check(
    manifests: Sequence[Mapping[str, Any]],
    *,
    enforced: Enforced = lambda namespace: "restricted",
    version: str = VERSION,
) -> list[Finding]:
    """The findings in the manifests, object by object.

    Args:
        enforced: the Pod Security Standard of each namespace.
        version: of Kubernetes, for the schemas of its own kinds.
    """
    schemas = schemas_of(version)
    found: list[Finding] = []
    seen: set[tuple[str, str, str, str]] = set()
    for number, manifest in enumerate(manifests, 1):
        field = _object(manifest, number)
        level = enforced(field.at("metadata", "namespace").text)
        of_object = [*_identity(field, seen), *_content(field, level)]
        if not any(each.by in ("api", "pods") for each in of_object):
            of_object += _by_types(field, schemas)  # its messages are less specific than those of the rules
        found += of_object
    return found


def refusals(findings: Sequence[Finding]) -> list[Finding]:
    """The findings that the cluster refuses at once or later."""
    return [each for each in findings if each.since is None and each.by != "nobody"]


def advice(findings: Sequence[Finding]) -> list[str]:
    """A line for each finding that the cluster accepts, although the manifest does not work as intended."""
    return [
        f"advice: {each.where} {each.message}. {each.remedy}"
        for each in findings
        if each.since is None and each.by == "nobody"
    ]


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


def _identity(field: Field, seen: set[tuple[str, str, str, str]]) -> Iterator[Finding]:
    """Rules for what every object has: kind, name, namespace, labels."""
    if not isinstance(field.value, Mapping):
        yield field.finding(f"is {field.shown}, and must be a mapping", "Check its indentation.", "api")
        return
    version, kind, about = field.at("apiVersion"), field.at("kind"), field.at("metadata")
    group = version.text.rpartition("/")[0]
    for key in (version, kind):
        if not key.text:
            yield key.finding("is missing", "Every object has an apiVersion and a kind.", "api")
    for right in _VERSIONS:
        if kind.text != right and kind.text.lower() == right.lower():
            yield kind.finding(f"is {kind.shown}", f"Write {right}.", "api")
    known = _VERSIONS.get(kind.text, ())
    if version.text and known and version.text not in known and _is_of_kubernetes(group, known):
        message = f"is {version.shown}, and must be {' or '.join(known)} for a {kind.text}"
        yield version.finding(message, f"Write apiVersion: {known[0]}.", "api")
    name, namespace = about.at("name"), about.at("namespace")
    if not name.text and not about.at("generateName").text:
        yield name.finding("is missing", "Give the object a name.", "api")
    elif name.text and group != _RBAC and (problem := subdomain(name.text)):
        yield name.finding(f"is {name.shown}, and {problem}", "Rename it.", "api")
    if namespace.is_set and namespace.value != "" and (problem := label_1123(namespace.text)):
        yield namespace.finding(f"is {namespace.shown}, and a namespace {problem}", "Correct it.", "api")
    yield from metadata(about)
    key_of_all = (group, kind.text, namespace.text, name.text)
    if name.text and key_of_all in seen:
        message = "occurs twice: the later one replaces the first"
        yield field.finding(message, "Rename one of them.", "nobody")
    seen.add(key_of_all)


def _is_of_kubernetes(group: str, known: Sequence[str]) -> bool:
    """Whether a group is that of the known versions, or another of Kubernetes' own, which have no domain."""
    return "." not in group or group == known[0].rpartition("/")[0]


def _is_known(field: Field) -> bool:
    """Whether the rules for its kind are about this object, not about such a kind of another group."""
    version, known = field.at("apiVersion").text, _VERSIONS.get(field.at("kind").text, ())
    return not version or (bool(known) and _is_of_kubernetes(version.rpartition("/")[0], known))


def _content(field: Field, level: Level) -> Iterator[Finding]:
    rules: dict[str, Callable[[Field], Iterator[Finding]]] = {
        "RayJob": partial(rayjob, level=level),
        "RayCluster": partial(_raycluster, level=level),
        "ConfigMap": config_map,
        "Secret": config_map,
        "PersistentVolumeClaim": volume_claim,
        "NetworkPolicy": network_policy,
        "PodDisruptionBudget": disruption_budget,
    }
    if (rule := rules.get(field.at("kind").text)) and _is_known(field):
        yield from rule(field)
    elif field.at("kind").text in _TEMPLATES and "." not in field.at("apiVersion").text:
        yield from _workload(field)


def _workload(field: Field) -> Iterator[Finding]:
    """A Pod, or an object with a pod template: the API server checks the template with the object."""
    template = field.at(*_TEMPLATES[field.at("kind").text])
    for finding in pod_template(template):
        yield replace(finding, by="api") if finding.by in ("pods", "operator") else finding
    policy = template.at("spec", "restartPolicy")
    if "Job" in field.at("kind").text and policy.text not in ("OnFailure", "Never"):
        message = f"is {policy.shown if policy.is_set else 'missing'}, and must be Never or OnFailure"
        yield policy.finding(message, "Set it to Never.", "api")


def _raycluster(cluster: Field, level: Level) -> Iterator[Finding]:
    yield from ray_name(cluster.at("metadata", "name"), LONGEST_RAYCLUSTER)
    yield from cluster_spec(cluster.at("spec"), cluster.at("metadata", "annotations"), level)


def _by_types(field: Field, schemas: Schemas | None) -> Iterator[Finding]:
    spec = field.at("spec")
    if field.at("kind").text in ("RayJob", "RayCluster") and _is_known(field):
        is_job = field.at("kind").text == "RayJob"
        if is_job:
            yield from wrong_types(spec, JOB_TYPES)
            yield from unknown(spec, JOB_TYPES)
        cluster = spec.at("rayClusterSpec") if is_job else spec
        yield from wrong_types(cluster, CLUSTER_TYPES)
        yield from unknown(cluster, CLUSTER_TYPES)
        if cluster.is_set:
            yield from missing(cluster)
            yield from unknown_words(cluster)
        if schemas is not None:
            yield from of_ray(field, schemas)
    elif schemas is not None:
        yield from built_in(field, schemas)
