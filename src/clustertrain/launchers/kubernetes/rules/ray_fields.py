"""The types of the fields of Ray's kinds, as in the CRDs of KubeRay 1.6. A later version of KubeRay may add
fields, but changes no type; so an unknown field is no finding here.

Pod templates have the schema of Kubernetes (schemas.py). A cluster checks all of it (dry_run.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from clustertrain.launchers.kubernetes.rules.finding import Field, Finding

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
_LARGEST = 2**31 - 1  # all whole numbers of Ray's kinds are int32


def wrong_types(spec: Field, types: Mapping[str, tuple[str, ...]]) -> Iterator[Finding]:
    """The fields below `spec` whose value has another type than the CRD requires."""
    for expected, paths in types.items():
        for path in paths:
            for field in _at(spec, path.split(".")):
                if field.is_set and not _is(field.value, expected):
                    in_quotes = expected == "text" and not isinstance(field.value, dict | list)
                    remedy = "Write it in quotes." if in_quotes else "Correct it."
                    yield field.finding(f"is {field.shown}, and must be {expected}", remedy, "api")


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
        is_whole = isinstance(value, int) or value.is_integer()
        return expected == "a number" or (is_whole and abs(value) <= _LARGEST)
    kinds = {"text": str, "true or false": bool, "a mapping": dict, "a list": list}
    return isinstance(value, kinds[expected])
