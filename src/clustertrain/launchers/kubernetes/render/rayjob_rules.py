"""Mistakes in a RayJob that the API server accepts: the KubeRay operator refuses them later, or nobody does.

Only `kubernetes.patches` make most of them: what clustertrain renders keeps the rules. They are those of
KubeRay 1.6.2 and 1.7.0 and of Kueue 0.14. Of all else that the operator refuses, `submit` and `status` print
its own verdict, ValidationFailed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from clustertrain.errors import JobError
from clustertrain.launchers.kubernetes.render.fields import at, items
from clustertrain.launchers.kubernetes.render.manifests import Manifest
from clustertrain.units import shortened

_MODES = ("K8sJobMode", "HTTPMode", "SidecarMode", "InteractiveMode")
_KUEUE = "kueue.x-k8s.io/queue-name"
_QUEUES = (_KUEUE, "volcano.sh/queue-name", "yunikorn.apache.org/queue")
_KUEUE_MOST_PODSETS = 8  # kinds of pods of one workload
_AMOUNTS_OF_RAY = ("num-cpus", "num-gpus", "memory", "resources")
_LARGEST_INT32 = 2**31 - 1
_QUANTITIES = ("requests", "limits", "sizeLimit")  # their numbers may be larger
_SHOWN = 3


@dataclass(frozen=True)
class _Finding:
    """A mistake at a path of the RayJob. `refused`: by the operator; else it does not work as intended."""

    path: str
    message: str
    remedy: str
    refused: bool = True


def check_rayjob(rayjob: Manifest) -> list[str]:
    """Return a line of advice for each mistake that nobody refuses.

    Raises:
        JobError: the operator would refuse the RayJob after it was applied.
    """
    spec, name = rayjob.get("spec"), f"RayJob {rayjob['metadata']['name']}"
    findings = [*_shape(at(spec, "rayClusterSpec"))] or [
        *_ends(spec),
        *_submission(spec),
        *_too_large(spec, "spec"),
        *_cluster(at(spec, "rayClusterSpec")),
        *_queues(rayjob),
    ]
    lines = []
    refused = [each for each in findings if each.refused]
    for each in refused[:_SHOWN]:
        lines += [
            f"{name}: {each.path} {each.message} (the KubeRay operator refuses it after it was applied).",
            f"  {each.remedy}",
        ]
    if len(refused) > _SHOWN:
        lines.append(f"These are the first {_SHOWN} of {len(refused)}.")
    if lines:
        raise JobError("\n".join(lines), at=("kubernetes", "patches"))
    return [f"advice: {name}: {each.path} {each.message}. {each.remedy}" for each in findings]


def _number(value: Any, *keys: str) -> int:
    found = at(value, *keys)
    return found if isinstance(found, int) else 0


def _groups(cluster: Any) -> Iterator[tuple[str, Any]]:
    """The head's group and the worker groups, each with its path in the RayJob."""
    yield "spec.rayClusterSpec.headGroupSpec", at(cluster, "headGroupSpec")
    for number, group in enumerate(items(cluster, "workerGroupSpecs")):
        yield f"spec.rayClusterSpec.workerGroupSpecs[{number}]", group


def _shape(cluster: Any) -> Iterator[_Finding]:
    """What clustertrain relies on: a head's pod and a worker's pod, each with a container."""
    for path, group in _groups(cluster):
        containers = items(group, "template", "spec", "containers")
        if not containers or not all(isinstance(each, Mapping) for each in containers):
            remedy = "Leave it as it is rendered: Ray runs in the first container."
            yield _Finding(f"{path}.template.spec.containers", "has no container", remedy)
    if not items(cluster, "workerGroupSpecs"):
        remedy = "Leave it as it is rendered; resources has the number of workers."
        yield _Finding("spec.rayClusterSpec.workerGroupSpecs", "has no group", remedy)


def _ends(spec: Any) -> Iterator[_Finding]:
    """How the run ends, and what is deleted then."""
    if at(spec, "shutdownAfterJobFinishes") is True:
        if items(spec, "deletionStrategy", "deletionRules"):
            message = "are given while shutdownAfterJobFinishes is true"
            remedy = "Take shutdownAfterJobFinishes and its TTL out, or the rules."
            yield _Finding("spec.deletionStrategy.deletionRules", message, remedy)
        return
    for path in ("ttlSecondsAfterFinished", "suspend"):
        if _number(spec, path) > 0:
            message = f"is {_shown(at(spec, path))} while shutdownAfterJobFinishes is not true"
            yield _Finding(f"spec.{path}", message, "Leave shutdownAfterJobFinishes as it is rendered.")
    if at(spec, "deletionStrategy") is None:
        message = "is not true: the cluster stays, with its GPUs, after the job has ended"
        remedy = "Leave it as it is rendered; kubernetes.ttl keeps the head's pod for a while."
        yield _Finding("spec.shutdownAfterJobFinishes", message, remedy, refused=False)


def _submission(spec: Any) -> Iterator[_Finding]:
    mode = at(spec, "submissionMode")
    if mode not in (None, *_MODES):
        near = get_close_matches(str(mode), _MODES, n=1, cutoff=0.4)
        message = f"is {_shown(mode)}: the operator starts the cluster and never submits the job"
        remedy = f"Did you mean '{near[0]}'?" if near else f"The modes are {', '.join(_MODES)}."
        yield _Finding("spec.submissionMode", message, remedy, refused=False)
    if mode != "SidecarMode":
        return
    for key in ("submitterPodTemplate", "submitterConfig"):
        if at(spec, key) is not None:
            message = "is given with SidecarMode, which has no pod for the submitter"
            yield _Finding(f"spec.{key}", message, "Set kubernetes.submission_mode, which leaves it out.")
    path = ("rayClusterSpec", "headGroupSpec", "template", "spec", "restartPolicy")
    if (policy := at(spec, *path)) not in (None, "", "Never"):
        message = f"is {_shown(policy)}, and must be Never with SidecarMode"
        yield _Finding(".".join(("spec", *path)), message, "Leave it out.")


def _too_large(value: Any, path: str) -> Iterator[_Finding]:
    """Whole numbers that Go cannot read as int32; the API server does not check CRDs for this."""
    if isinstance(value, int) and value > _LARGEST_INT32:
        message = f"is {value}, and must be at most {_LARGEST_INT32}: the operator cannot read it"
        yield _Finding(path, message, "Change it: the operator then reads no other RayJob either.")
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in _QUANTITIES:
                yield from _too_large(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _too_large(inner, f"{path}[{number}]")


def _cluster(cluster: Any) -> Iterator[_Finding]:
    if at(cluster, "upgradeStrategy", "type") is not None:
        message = "is given, which the operator refuses for the cluster of a RayJob: the job waits forever"
        yield _Finding("spec.rayClusterSpec.upgradeStrategy.type", message, "Take it out.")
    if at(cluster, "authOptions", "mode") != "token":
        message = "is not 'token': anyone who can connect to port 8265 or 6379 of the head can run code there"
        where = "spec.rayClusterSpec.authOptions.mode"
        yield _Finding(where, message, "Leave it as it is rendered.", refused=False)
    for path, group in _groups(cluster):
        yield from _parameters(group, path)
        yield from _containers(group, f"{path}.template.spec.containers")
    for path, group in [*_groups(cluster)][1:]:
        least, most = _number(group, "minReplicas"), _number(group, "maxReplicas")
        replicas = at(group, "replicas")
        if least > most:
            message = f"is {least}, more than maxReplicas, which is {most}"
            yield _Finding(f"{path}.minReplicas", message, "Give maxReplicas the larger of the two.")
        elif isinstance(replicas, int) and not least <= replicas <= most:
            message = (
                f"is {replicas}, outside minReplicas {least} to maxReplicas {most}: the nearer one counts"
            )
            yield _Finding(f"{path}.replicas", message, "Give all three the same number.", refused=False)


def _parameters(group: Any, path: str) -> Iterator[_Finding]:
    """The arguments of `ray start`; clustertrain renders the amounts there."""
    both = [key for key in _AMOUNTS_OF_RAY if at(group, "rayStartParams", key)]
    if both and at(group, "resources"):
        message = f"is given while rayStartParams has {', '.join(both)}: only one of them may"
        yield _Finding(f"{path}.resources", message, "Change the rayStartParams instead.")
    if at(group, "rayStartParams", "labels") is not None:
        yield _Finding(
            f"{path}.rayStartParams.labels", "is not allowed there", f"Write {path}.labels instead."
        )


def _containers(group: Any, path: str) -> Iterator[_Finding]:
    containers = items(group, "template", "spec", "containers")
    names = [str(at(each, "name")) for each in containers]
    late = [name for name in names[1:] if name.startswith("ray-")]
    if late and not names[0].startswith("ray-"):
        message = f"begins with {names[0]}, and the operator starts Ray in the first one, not in {late[0]}"
        yield _Finding(path, message, f"Put {late[0]} first.", refused=False)
    image = str(at(containers[0], "image") or "") if containers else ""
    if image and ":" not in (last := image.rpartition("/")[2]) and "@" not in last:
        message = (
            f"is {_shown(image)}, without a tag: nodes that pull at different times may run different images"
        )
        yield _Finding(f"{path}[0].image", message, "Name a tag or a digest.", refused=False)
    of_pod = at(group, "template", "spec", "securityContext", "runAsUser")
    for number, container in enumerate(containers):
        context = at(container, "securityContext")
        user = of_pod if at(context, "runAsUser") is None else at(context, "runAsUser")
        if user and "IPC_LOCK" in items(context, "capabilities", "add"):
            message = f"adds 'IPC_LOCK' for user {user}, and Linux gives added capabilities only to root"
            remedy = "Raise the limit of locked memory of the nodes' container runtime, or run as user 0."
            where = f"{path}[{number}].securityContext.capabilities.add"
            yield _Finding(where, message, remedy, refused=False)


def _queues(rayjob: Manifest) -> Iterator[_Finding]:
    """Queues: what Kueue's own webhook refuses is found by the dry run."""
    queues = [key for key in _QUEUES if at(rayjob, "metadata", "labels", key)]
    spec = rayjob.get("spec")
    if len(queues) > 1:
        message = (
            f"name the queues of {len(queues)} schedulers, {' and '.join(queues)}: each would queue the job"
        )
        yield _Finding("metadata.labels", message, "Leave all but one out.", refused=False)
    if _KUEUE not in queues or at(spec, "submissionMode") not in (None, "K8sJobMode"):
        return
    names = [str(at(each, "groupName")) for each in items(spec, "rayClusterSpec", "workerGroupSpecs")]
    where = "spec.rayClusterSpec.workerGroupSpecs"
    if len(names) + 2 > _KUEUE_MOST_PODSETS:  # Kueue's webhook does not count the submitter
        message = (
            f"have {len(names)} groups: with the head and the submitter {len(names) + 2} kinds of pods, "
        )
        message += f"and Kueue 0.14 allows {_KUEUE_MOST_PODSETS}: the job waits forever"
        yield _Finding(where, message, "Merge some groups.", refused=False)
    if "submitter" in names:
        message = "have a group 'submitter', a name that Kueue reserves: the job waits forever"
        yield _Finding(where, message, "Rename the group.", refused=False)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return shortened(repr(value))
