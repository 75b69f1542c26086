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

from clustertrain.launchers.kubernetes.render.pods import ROLE_LABEL

Object = Mapping[str, Any]
_LONGEST = 700
_READY_WITHIN_S = 60.0
_STARTING = ("ContainerCreating", "PodInitializing", "")
_REASONS_OF_CONTAINERS = ("BackOff", "Failed", "FailedScheduling", "Unhealthy", "Killing")
# The reason of an event that a pod could not be created, and the role of that pod; None: any role.
_CREATION_FAILURES: Mapping[str, str | None] = {
    "FailedToCreateHeadPod": "head",
    "FailedToCreateWorkerPod": "worker",
    "FailedCreate": "submitter",  # of the submitter's Job
    "FailedToCreateRayJobSubmitter": "submitter",
    "FailedToCreateRayCluster": None,
    "FailedToCreateService": None,
    "InvalidRayJobSpec": None,
    "InvalidRayJobMetadata": None,
    "InvalidRayClusterSpec": None,
    "InvalidRayClusterMetadata": None,
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
    return str(pod["metadata"].get("labels", {}).get(ROLE_LABEL, ""))


def name_of(thing: Object) -> str:
    return str(thing["metadata"]["name"])


def is_terminating(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def is_running(pod: Object) -> bool:
    """Whether all containers of the pod run. A pod that is terminating does not count as running."""
    return not is_terminating(pod) and has_running_containers(pod)


def has_running_containers(pod: Object) -> bool:
    containers = _containers(pod, "containerStatuses")
    return bool(containers) and all("running" in c.get("state", {}) for c in containers)


def time_of(event: Object) -> float:
    """When the event happened last, in seconds since 1970, or 0 if it has no time."""
    series = event.get("series") or {}
    times = (event.get("lastTimestamp"), series.get("lastObservedTime"), event.get("eventTime"))
    return max(map(seconds, filter(None, times)), default=0.0)


def seconds(timestamp: str) -> float:
    """Seconds since 1970 of a time as Kubernetes writes it: 2026-11-21T20:00:00Z, or with a fraction."""
    return datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()


def node_of(pod: Object) -> str:
    """The node that a pod is bound to, or empty if there is none yet."""
    return str(pod.get("spec", {}).get("nodeName", ""))


def needs_node_check(pod: Object, now: float) -> bool:
    """Whether the node of a pod may not answer: the pod is not ready although its containers run, or it still
    exists although its grace period is over."""
    if not node_of(pod):
        return False
    if is_terminating(pod):
        return now > seconds(pod["metadata"]["deletionTimestamp"])
    conditions = {each["type"]: each["status"] for each in pod.get("status", {}).get("conditions", ())}
    return is_running(pod) and conditions.get("Ready", "True") != "True"


def silent_containers(pods: Sequence[Object], now: float) -> list[tuple[str, str, str]]:
    """The containers whose last lines explain a problem: role and name of the pod, name of the container."""
    return [
        (role_of(pod), name_of(pod), str(container["name"]))
        for pod in pods
        if not is_terminating(pod)
        for key in ("initContainerStatuses", "containerStatuses")
        for container in _containers(pod, key)
        if _ended_badly(container) or (key == "containerStatuses" and is_never_ready(container, now))
    ]


def _ended_badly(container: Object) -> bool:
    state, before = container.get("state", {}), container.get("lastState", {})
    ended = state.get("terminated") or (before.get("terminated") if "waiting" in state else None) or {}
    return bool(ended.get("exitCode"))


def is_never_ready(container: Object, now: float) -> bool:
    """Whether a container has run for a minute and is not ready."""
    started = container.get("state", {}).get("running", {}).get("startedAt")
    return bool(started) and container.get("ready") is False and now > seconds(started) + _READY_WITHIN_S


# ------------------------------------------------------------------------------------------------ lost nodes


def _on_lost_nodes(pods: Sequence[Object], lost_nodes: Mapping[str, str]) -> Iterator[str]:
    for node, why in lost_nodes.items():
        names = [name_of(pod) for pod in pods if node_of(pod) == node]
        yield _one_line(
            f"node {node} is NotReady ({why}), with {', '.join(names)}. KubeRay replaces a pod only when "
            f"it is gone. If the machine does not come back: kubectl delete node {shlex.quote(node)}; "
            f"or, without rights on nodes: kubectl delete pod --force --grace-period=0 {shlex.join(names)}"
        )


# --------------------------------------------------------------------------- pods that cannot be created


def _not_created(
    pods: Sequence[Object], events: Sequence[Object], expected: Mapping[str, int]
) -> Iterator[str]:
    there = [role_of(pod) for pod in pods if not is_terminating(pod)]
    missing = {role for role, number in expected.items() if there.count(role) < number}
    for reason, role in _CREATION_FAILURES.items():
        if role in missing if role is not None else not there:
            last = _last(event for event in events if event["reason"] == reason)
            if last is not None:
                text = re.sub(r"^.*? is forbidden: ", "", last["message"])  # has a pod name that changes
                yield f"{_pods_of(role)} cannot be created: {_one_line(text)}"


def _pods_of(role: str | None) -> str:
    return {None: "its pods", "worker": "worker pods"}.get(role, f"the {role}'s pod")


# --------------------------------------------------------------------------------------- problems of one pod


def _of_pod(pod: Object, events: Sequence[Object], last_words: LastWords) -> Iterator[Problem]:
    status = pod.get("status", {})
    own = [e for e in events if _is_of(e, "Pod", name_of(pod)) and e.get("type") == "Warning"]
    of_containers = [*_of_containers(pod, own, last_words)]
    yield from of_containers
    if status.get("phase") == "Failed" and status.get("reason"):  # such as Evicted
        yield Problem(_one_line(f"{status['reason']}: {status.get('message', '')}"))
    elif status.get("phase") == "Pending" and not of_containers:
        for condition in status.get("conditions", ()):
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                text = f"{condition.get('reason', '')}: {condition.get('message', '')}"
                yield Problem(_one_line(text + _of_claims(pod, text, events)))
                return
        last = _last(event for event in own if event["reason"] not in _REASONS_OF_CONTAINERS)
        if last is not None:
            yield Problem(_one_line(f"{last['reason']}: {last['message']}"))


def _of_claims(pod: Object, text: str, events: Sequence[Object]) -> str:
    """Why a claim is not bound, from its events. The scheduler's message does not have the reason."""
    if "persistentvolumeclaim" not in text.lower():
        return ""
    volumes = pod["spec"].get("volumes", ())
    claims = [v["persistentVolumeClaim"]["claimName"] for v in volumes if "persistentVolumeClaim" in v]
    stored = []
    for claim in claims:
        last = _last(event for event in events if _is_of(event, "PersistentVolumeClaim", claim))
        if last is not None:
            stored.append(f"; claim {claim}: {last['reason']}: {last['message']}")
    return "".join(stored)


def _of_containers(pod: Object, warnings: Sequence[Object], last_words: LastWords) -> Iterator[Problem]:
    for key in ("initContainerStatuses", "containerStatuses"):
        for container in _containers(pod, key):
            words = last_words.get((role_of(pod), container["name"]), "") or _start_error(container)
            said = f": {words}" if words else ""
            if (problem := _of_container(container)) is not None:
                yield Problem(_one_line(problem.text + said), problem.blocks)
            elif words:  # it is only read of a container that is not ready
                failed = _last(event for event in warnings if event["reason"] == "Unhealthy")
                why = f" ({failed['message']})" if failed is not None else ""
                text = f"container {container['name']} runs and does not get ready{why}"
                yield Problem(_one_line(text + said))


def _start_error(container: Object) -> str:
    """Why a container could not be started, such as a program that its image does not have."""
    ended = (
        container.get("state", {}).get("terminated") or container.get("lastState", {}).get("terminated") or {}
    )
    return _one_line(str(ended.get("message") or "")) if ended.get("exitCode") else ""


def _of_container(container: Object) -> Problem | None:
    state, before = container.get("state", {}), container.get("lastState", {})
    ended = state.get("terminated") or before.get("terminated") or {}
    waits = state.get("waiting", {})
    runs = "running" in state
    if ended.get("reason") == "OOMKilled":
        again = ", and restarted" if runs else ""
        text = f"container {container['name']} was killed at its memory limit (OOMKilled){again}"
        return Problem(text, blocks=not runs)
    if runs and ended:
        text = f"container {container['name']} ended with code {ended.get('exitCode')}, and was restarted"
        return Problem(text, blocks=False)
    if waits.get("reason") == "CrashLoopBackOff":
        code = ended.get("exitCode")
        return Problem(
            f"container {container['name']} ends with code {code} at every start (CrashLoopBackOff)"
        )
    if waits.get("reason", "") not in _STARTING:
        return Problem(_one_line(f"{waits['reason']}: {waits.get('message', '')}"))
    if state.get("terminated", {}).get("exitCode"):
        return Problem(f"container {container['name']} ended with code {ended['exitCode']}")
    return None


def _containers(pod: Object, key: str) -> Sequence[Object]:
    found: Sequence[Object] = pod.get("status", {}).get(key) or ()
    return found


def _is_of(event: Object, kind: str, name: str) -> bool:
    about = event.get("involvedObject", {})
    return (about.get("kind"), about.get("name")) == (kind, name)


def _last(events: Iterable[Object]) -> Object | None:
    return max(events, key=time_of, default=None)


def _one_line(text: str) -> str:
    line = " ".join(text.split()).rstrip(": ")
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
