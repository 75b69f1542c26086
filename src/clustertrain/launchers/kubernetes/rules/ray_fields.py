"""The fields of Ray's kinds and their types, as in the CRDs of KubeRay 1.6. A later version may add fields,
but changes no type. So a wrong type is refused, and an unknown field is advice.

Pod templates have the schema of Kubernetes (schemas.py). A cluster checks all of it (dry_run.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from clustertrain.launchers.kubernetes.rules.finding import LARGEST_INT32, Field, Finding, too_large
from clustertrain.launchers.kubernetes.rules.raycluster import NEWER

# The fields of each type. `[]` stands for the items of a list.
JOB_TYPES: Mapping[str, tuple[str, ...]] = {
    "text": (
        *("entrypoint", "entrypointResources", "jobId", "managedBy", "runtimeEnvYAML", "submissionMode"),
        *("deletionStrategy.onFailure.policy", "deletionStrategy.onSuccess.policy"),
        "deletionStrategy.deletionRules[].policy",
    ),
    "a whole number": (
        *("activeDeadlineSeconds", "backoffLimit", "preRunningDeadlineSeconds", "ttlSecondsAfterFinished"),
        "submitterConfig.backoffLimit",
    ),
    "a number": ("entrypointNumCpus", "entrypointNumGpus"),
    "true or false": ("shutdownAfterJobFinishes", "suspend"),
    "a mapping": (
        *("clusterSelector", "deletionStrategy", "metadata", "rayClusterSpec", "submitterConfig"),
        *("submitterPodTemplate", "deletionStrategy.onFailure", "deletionStrategy.onSuccess"),
    ),
    "a list": ("deletionStrategy.deletionRules",),
}
CLUSTER_TYPES: Mapping[str, tuple[str, ...]] = {
    "text": (
        *("managedBy", "rayVersion", "authOptions.mode", "authOptions.secretName", "upgradeStrategy.type"),
        *(f"autoscalerOptions.{key}" for key in ("image", "imagePullPolicy", "upscalingMode", "version")),
        *("gcsFaultToleranceOptions.externalStorageNamespace", "gcsFaultToleranceOptions.redisAddress"),
        *("headGroupSpec.serviceType", "workerGroupSpecs[].groupName"),
        "workerGroupSpecs[].scaleStrategy.workersToDelete[]",
    ),
    "a whole number": (
        "autoscalerOptions.idleTimeoutSeconds",
        *("workerGroupSpecs[].idleTimeoutSeconds", "workerGroupSpecs[].numOfHosts"),
        *(f"workerGroupSpecs[].{key}" for key in ("maxReplicas", "minReplicas", "replicas")),
    ),
    "true or false": (
        *("authOptions.enableK8sTokenAuth", "enableInTreeAutoscaling", "headGroupSpec.enableIngress"),
        *("suspend", "workerGroupSpecs[].suspend"),
    ),
    "a mapping": (
        *("authOptions", "autoscalerOptions", "gcsFaultToleranceOptions", "headGroupSpec"),
        *("headServiceAnnotations", "upgradeStrategy", "headGroupSpec.headService", "workerGroupSpecs[]"),
        *(
            f"{group}.{key}"
            for group in ("headGroupSpec", "workerGroupSpecs[]")
            for key in ("labels", "rayStartParams", "resources", "template")
        ),
        "workerGroupSpecs[].scaleStrategy",
    ),
    "a list": ("workerGroupSpecs", "workerGroupSpecs[].scaleStrategy.workersToDelete"),
}
# Fields whose type is not in the tables: that of a container's field, or a text with another source.
_MORE = {
    "autoscalerOptions": ("env", "envFrom", "resources", "securityContext", "volumeMounts"),
    "gcsFaultToleranceOptions": ("redisPassword", "redisUsername"),
}
# Mappings with keys of the user, and those that have a schema of Kubernetes or rules of their own.
_FREE = ("clusterSelector", "metadata", "headServiceAnnotations", "labels", "rayStartParams", "resources")
_ELSEWHERE = ("template", "submitterPodTemplate", "headService", "rayClusterSpec", "deletionStrategy")
_REQUIRED = ("headGroupSpec.template", "workerGroupSpecs[].groupName", "workerGroupSpecs[].template")
# The values that KubeRay 1.6 knows. A later version may add some.
_WORDS = {
    "authOptions.mode": ("disabled", "token"),
    "autoscalerOptions.upscalingMode": ("Aggressive", "Conservative", "Default"),
    "autoscalerOptions.version": ("v1", "v2"),
}


def wrong_types(spec: Field, types: Mapping[str, tuple[str, ...]]) -> Iterator[Finding]:
    """The fields below `spec` whose value has another type than the CRD requires."""
    for expected, paths in types.items():
        for path in paths:
            for field in _at(spec, path.split(".")):
                if (field.number or 0) > LARGEST_INT32 and expected == "a whole number":
                    yield too_large(field)
                elif field.is_set and not _is(field.value, expected):
                    in_quotes = expected == "text" and not isinstance(field.value, dict | list)
                    remedy = "Write it in quotes." if in_quotes else "Correct it."
                    yield field.finding(f"is {field.shown}, and must be {expected}", remedy, "api")


def unknown(spec: Field, types: Mapping[str, tuple[str, ...]]) -> Iterator[Finding]:
    """The fields below `spec` that KubeRay does not have."""
    paths = [path for of_type in types.values() for path in of_type]
    mappings = [path for path in types["a mapping"] if path.rpartition(".")[2] not in _FREE + _ELSEWHERE]
    for mapping in ("", *mappings):
        prefix = f"{mapping}." if mapping else ""
        known = {
            path[len(prefix) :].partition(".")[0].removesuffix("[]")
            for path in paths
            if path.startswith(prefix)
        }
        known |= {*_MORE.get(mapping, ()), *_newer(mapping)}
        for field in _at(spec, mapping.split(".") if mapping else []):
            for key in sorted({*field.entries()} - known):
                near = get_close_matches(key, known, n=1)
                remedy = f"Did you mean '{near[0]}'?" if near else "A cluster without this field refuses it."
                yield field.at(key).finding("is not a known field of KubeRay", remedy, "nobody")


def _newer(mapping: str) -> Iterator[str]:
    """The fields that a version after 1.6 has added to a mapping of the cluster's spec."""
    for added in NEWER.values():
        for path, names in added.items():
            if ".".join(path) == mapping.removesuffix("[]"):
                yield from names


def unknown_words(cluster: Field) -> Iterator[Finding]:
    """The fields of a Ray cluster whose value KubeRay does not have."""
    for path, known in _WORDS.items():
        field = cluster.at(*path.split("."))
        if field.is_set and field.value not in known:
            message = f"is {field.shown}, and KubeRay 1.6 has {' and '.join(known)}"
            yield field.finding(message, "A cluster whose CRD has no such value refuses it.", "nobody")


def missing(cluster: Field) -> Iterator[Finding]:
    """The fields that the CRD requires in the spec of a Ray cluster, and that are not there."""
    for path in _REQUIRED:
        for field in _at(cluster, path.split(".")):
            if not field.is_set:
                yield field.finding("is missing", "Give it.", "api")


def _at(field: Field, path: list[str]) -> Iterator[Field]:
    if not path:
        yield field
    elif path[0].endswith("[]"):
        for item in field.at(path[0][:-2]).items():
            yield from _at(item, path[1:])
    else:
        yield from _at(field.at(path[0]), path[1:])


def _is(value: object, expected: str) -> bool:
    if expected in ("a whole number", "a number"):
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        return expected == "a number" or isinstance(value, int) or value.is_integer()
    kinds = {"text": str, "true or false": bool, "a mapping": dict, "a list": list}
    return isinstance(value, kinds[expected])
