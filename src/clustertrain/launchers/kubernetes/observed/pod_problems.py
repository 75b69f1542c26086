"""Why the pods of a run do not run: one line for each problem. Pure functions of the pods and the events.

problem                                        source
a pod is on a node that does not answer        the node; if it cannot be read, the events of the pod
a pod waits for its image, secret or volume    the state of its containers, or the events of the pod
a container ended, or never gets ready         its state, and the last lines that it printed
a pod waits for a node                         the scheduler's condition; for a volume, events of its claim
a pod is not created: quota, Pod Security      the events of the controller that creates it
a container was killed at its memory limit     its last state
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any

from clustertrain.launchers.kubernetes.render.fields import at, items
from clustertrain.launchers.kubernetes.render.pods import ROLE_LABEL

Object = Mapping[str, Any]
_LONGEST = 700
_STARTING = ("ContainerCreating", "PodInitializing", "")
_REASONS_OF_CONTAINERS = ("BackOff", "Failed", "FailedScheduling", "Unhealthy", "Killing")
# The reason of an event that a pod could not be created, and the role of that pod; None: any role.
_CREATION_FAILURES: Mapping[str, str | None] = {
    "FailedToCreateHeadPod": "head",
    "FailedToCreateWorkerPod": "worker",
    "FailedCreate": "submitter",  # of the submitter's Job
    "FailedToCreateRayJobSubmitter": "submitter",
    **dict.fromkeys(("FailedToCreateRayCluster", "FailedToCreateService")),
    **dict.fromkeys(("InvalidRayJobSpec", "InvalidRayJobMetadata")),
    **dict.fromkeys(("InvalidRayClusterSpec", "InvalidRayClusterMetadata")),
}


@dataclass(frozen=True)
class Problem:
    """A problem in one line. `blocks`: it still keeps the pod from running. Other problems are past."""

    text: str
    blocks: bool = True


# The last lines of a container, by the role of its pod and its name.
LastWords = Mapping[tuple[str, str], str]


def problems(
    pods: Sequence[Object],
    events: Sequence[Object],
    expected: Mapping[str, int],
    lost_nodes: Mapping[str, str] = MappingProxyType({}),
    last_words: LastWords = MappingProxyType({}),
) -> list[Problem]:
    """All problems: of nodes, of pods that cannot be created, of pods. One of several pods is listed once.

    Args:
        events: of the run's objects and of claims, in any order.
        expected: how many pods of each role should exist now.
        lost_nodes: why a node is not ready, by its name.
    """
    found = [Problem(text) for text in _on_lost_nodes(pods, lost_nodes)]
    found += [Problem(text) for text in _not_created(pods, events, expected)]
    of_pods: dict[Problem, list[str]] = {}
    for pod in pods:
        if is_terminating(pod) or node_of(pod) in lost_nodes:
            continue
        for problem in _of_pod(pod, events, last_words):
            of_pods.setdefault(problem, []).append(name_of(pod))
    for problem, names in of_pods.items():
        pods_text = f"pod {names[0]}" if len(names) == 1 else f"{len(names)} pods ({', '.join(names)})"
        found.append(Problem(f"{pods_text}: {problem.text}", problem.blocks))
    return found


def role_of(pod: Object) -> str:
    """head, worker, submitter or reader."""
    return str(at(pod, "metadata", "labels", ROLE_LABEL) or "")


def name_of(thing: Object) -> str:
    return str(thing["metadata"]["name"])


def is_terminating(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def is_running(pod: Object) -> bool:
    """Whether all containers of the pod run. A pod that is terminating does not count as running."""
    return not is_terminating(pod) and has_running_containers(pod)


def has_running_containers(pod: Object) -> bool:
    containers = items(pod, "status", "containerStatuses")
    return bool(containers) and all("running" in each.get("state", {}) for each in containers)


def has_started(pod: Object) -> bool:
    """Whether the containers of the pod run, or have ended."""
    return at(pod, "status", "phase") in ("Running", "Succeeded", "Failed")


def time_of(event: Object) -> float:
    """When the event happened last, in seconds since 1970, or 0 if it has no time."""
    times = (event.get("lastTimestamp"), at(event, "series", "lastObservedTime"), event.get("eventTime"))
    return max(map(seconds, filter(None, times)), default=0.0)


def seconds(timestamp: str) -> float:
    """Seconds since 1970 of a time as Kubernetes writes it: 2026-11-21T20:00:00Z, or with a fraction."""
    return datetime.fromisoformat(timestamp).timestamp()


def node_of(pod: Object) -> str:
    """The node that a pod is bound to, or empty if there is none yet."""
    return str(at(pod, "spec", "nodeName") or "")


def containers_of(pod: Object) -> list[Any]:
    """The states of all containers of a pod, in the order in which they start."""
    return [*items(pod, "status", "initContainerStatuses"), *items(pod, "status", "containerStatuses")]


# ------------------------------------------------------------------------------------------------ lost nodes


def _on_lost_nodes(pods: Sequence[Object], lost_nodes: Mapping[str, str]) -> Iterator[str]:
    for node, why in lost_nodes.items():
        on_it = [pod for pod in pods if node_of(pod) == node]
        names, namespace = [name_of(pod) for pod in on_it], at(on_it[0], "metadata", "namespace")
        yield _one_line(
            f"node {node} is NotReady ({why}), with {', '.join(names)}. KubeRay replaces a pod only when "
            f"it is gone. If the machine does not come back: kubectl delete node {shlex.quote(node)}; "
            f"or, without rights on nodes: kubectl delete pod --namespace={namespace} --force "
            f"--grace-period=0 {shlex.join(names)}"
        )


# --------------------------------------------------------------------------- pods that cannot be created


def _not_created(
    pods: Sequence[Object], events: Sequence[Object], expected: Mapping[str, int]
) -> Iterator[str]:
    there = [role_of(pod) for pod in pods if not is_terminating(pod)]
    missing = {role for role, number in expected.items() if there.count(role) < number}
    for reason, role in _CREATION_FAILURES.items():
        last = _last(event for event in events if event["reason"] == reason)
        if last is not None and (role in missing if role is not None else not there):
            text = re.sub(r"^.*? is forbidden: ", "", last["message"])  # has a pod name that changes
            pods_of = {None: "its pods", "worker": "worker pods"}.get(role, f"the {role}'s pod")
            yield f"{pods_of} cannot be created: {_one_line(text)}"


# --------------------------------------------------------------------------------------- problems of one pod


def _of_pod(pod: Object, events: Sequence[Object], last_words: LastWords) -> Iterator[Problem]:
    status = pod.get("status", {})
    own = [each for each in events if _is_of(each, "Pod", name_of(pod)) and each.get("type") == "Warning"]
    unhealthy = _last(each for each in own if each["reason"] == "Unhealthy")
    of_containers = []
    for container in containers_of(pod):
        words = last_words.get((role_of(pod), container["name"]), "")
        if (problem := _of_container(container, words, unhealthy)) is not None:
            of_containers.append(problem)
    yield from of_containers
    if status.get("phase") == "Failed" and status.get("reason"):  # such as Evicted
        yield Problem(_one_line(f"{status['reason']}: {status.get('message', '')}"))
    elif status.get("phase") == "Pending" and not of_containers:
        unscheduled = [
            f"{each.get('reason', '')}: {each.get('message', '')}"
            for each in items(status, "conditions")
            if (each["type"], each["status"]) == ("PodScheduled", "False")
        ]
        last = _last(each for each in own if each["reason"] not in _REASONS_OF_CONTAINERS)
        if unscheduled:
            yield Problem(_one_line(unscheduled[0] + _of_claims(pod, unscheduled[0], events)))
        elif last is not None:
            yield Problem(_one_line(f"{last['reason']}: {last['message']}"))


def _of_claims(pod: Object, text: str, events: Sequence[Object]) -> str:
    """Why a claim is not bound, from its events. The scheduler's message does not have the reason."""
    if "persistentvolumeclaim" not in text.lower():
        return ""
    claims = [at(each, "persistentVolumeClaim", "claimName") for each in items(pod, "spec", "volumes")]
    last = [
        (claim, _last(e for e in events if _is_of(e, "PersistentVolumeClaim", claim))) for claim in claims
    ]
    return "".join(f"; claim {claim}: {e['reason']}: {e['message']}" for claim, e in last if e is not None)


def _of_container(container: Object, words: str, unhealthy: Object | None) -> Problem | None:
    """The problem of a container, with what it printed last, or why it could not be started."""
    named, state = f"container {container['name']}", container.get("state", {})
    now, before = state.get("terminated") or {}, at(container, "lastState", "terminated") or {}
    ended, waits, runs = now or before, at(state, "waiting", "reason") or "", "running" in state
    code = ended.get("exitCode")
    said = words or (str(ended.get("message") or "") if code else "")
    if ended.get("reason") == "OOMKilled":
        text = f"{named} was killed at its memory limit (OOMKilled){', and restarted' if runs else ''}"
    elif runs and ended:
        text = f"{named} ended with code {code}, and was restarted"
    elif waits == "CrashLoopBackOff":
        text = f"{named} ends with code {code} at every start (CrashLoopBackOff)"
    elif waits not in _STARTING:
        text = _one_line(f"{waits}: {state['waiting'].get('message', '')}")
    elif now.get("exitCode"):
        text = f"{named} ended with code {code}"
    elif words:  # they are only read of a container that is not ready
        why = f" ({unhealthy['message']})" if unhealthy is not None else ""
        text = f"{named} runs and does not get ready{why}"
    else:
        return None
    return Problem(_one_line(": ".join(filter(None, (text, said)))), blocks=not (runs and ended))


def _is_of(event: Object, kind: str, name: object) -> bool:
    return (at(event, "involvedObject", "kind"), at(event, "involvedObject", "name")) == (kind, name)


def _last(events: Iterable[Object]) -> Object | None:
    return max(events, key=time_of, default=None)


def _one_line(text: str) -> str:
    line = " ".join(text.split()).rstrip(": ")
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
