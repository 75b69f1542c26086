"""Mistakes in a RayJob that the API server accepts, and that neither it nor the operator reports later.

Only `kubernetes.patches` make most of them. The rules are those of KubeRay 1.6.2 and 1.7.0.
Of all that the operator refuses, `submit` and `status` print its own verdict, ValidationFailed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from clustertrain.errors import JobError
from clustertrain.launchers.kubernetes.render.fields import at, items
from clustertrain.launchers.kubernetes.render.manifests import Manifest
from clustertrain.units import shortened

_LARGEST_INT32 = 2**31 - 1
_QUANTITIES = ("requests", "limits", "sizeLimit")  # their numbers may be larger
_GROUPS = "spec.rayClusterSpec.workerGroupSpecs"


def check_rayjob(rayjob: Manifest) -> list[str]:
    """Return a line of advice for each mistake that only makes the run unsafe or slow.

    Raises:
        JobError: the RayJob has no pods as clustertrain needs them, or numbers that stop the operator.
    """
    name, spec = f"RayJob {rayjob['metadata']['name']}", rayjob.get("spec")
    for text in (*_shape(at(spec, "rayClusterSpec")), *_too_large(spec, "spec")):
        raise JobError(f"{name}: {text}", at=("kubernetes", "patches"))
    return [f"advice: {name}: {text}" for text in _advice(spec)]


def _groups(cluster: Any) -> Iterator[tuple[str, Any]]:
    """The head's group and the worker groups, each with its path in the RayJob."""
    yield "spec.rayClusterSpec.headGroupSpec", at(cluster, "headGroupSpec")
    for number, group in enumerate(items(cluster, "workerGroupSpecs")):
        yield f"{_GROUPS}[{number}]", group


def _shape(cluster: Any) -> Iterator[str]:
    """What clustertrain relies on: a head's pod and a worker's pod, each with a container."""
    for path, group in _groups(cluster):
        containers = items(group, "template", "spec", "containers")
        if not containers or not all(isinstance(each, Mapping) for each in containers):
            yield (
                f"{path}.template.spec.containers has no container.\n"
                "Leave it as it is rendered: Ray runs in the first container."
            )
    if not items(cluster, "workerGroupSpecs"):
        yield f"{_GROUPS} has no group.\nLeave it as it is rendered; resources has the number of workers."


def _too_large(value: Any, path: str) -> Iterator[str]:
    """Whole numbers that Go cannot read as int32; the API server does not check CRDs for this."""
    if isinstance(value, int) and value > _LARGEST_INT32:
        yield (
            f"{path} is {value}, and must be at most {_LARGEST_INT32}: the operator cannot read it.\n"
            "Change it: the operator then reads no other RayJob either."
        )
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in _QUANTITIES:
                yield from _too_large(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _too_large(inner, f"{path}[{number}]")


def _advice(spec: Any) -> Iterator[str]:
    cluster = at(spec, "rayClusterSpec")
    if at(spec, "shutdownAfterJobFinishes") is not True and at(spec, "deletionStrategy") is None:
        yield (
            "spec.shutdownAfterJobFinishes is not true: the cluster stays, with its GPUs, after the job has "
            "ended. Leave it as it is rendered; kubernetes.ttl keeps the head's pod for a while."
        )
    if at(cluster, "authOptions", "mode") != "token":
        yield (
            "spec.rayClusterSpec.authOptions.mode is not 'token': anyone who can connect to port 8265 or "
            "6379 of the head can run code there. Leave it as it is rendered."
        )
    for path, group in _groups(cluster):
        yield from _containers(at(group, "template", "spec"), f"{path}.template.spec.containers")


def _containers(pod: Any, path: str) -> Iterator[str]:
    first = items(pod, "containers")[0]
    image = str(at(first, "image") or "")
    if image and ":" not in (last := image.rpartition("/")[2]) and "@" not in last:
        yield (
            f"{path}[0].image is {shortened(repr(image))}, without a tag: nodes that pull at different times "
            "may run different images. Name a tag or a digest."
        )
    user = at(pod, "securityContext", "runAsUser")
    if user and "IPC_LOCK" in items(first, "securityContext", "capabilities", "add"):
        yield (
            f"{path}[0].securityContext.capabilities.add adds 'IPC_LOCK' for user {user}, and Linux gives "
            "added capabilities only to root. Raise the limit of locked memory of the nodes' container "
            "runtime, or run as user 0."
        )
