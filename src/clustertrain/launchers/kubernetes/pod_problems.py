"""Why the pods of a run do not run: one line for each problem. Pure functions of the pods and the events.

problem                                        source
a pod waits for its image, secret or volume    the state of its containers, or the events of the pod
a pod waits for a node                         the scheduler's condition; for a volume, events of its claim
a pod is not created: quota, Pod Security      the events of the controller that creates it
a container was killed at its memory limit     its last state
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from clustertrain.launchers.kubernetes.render.pods import ROLE_LABEL

Object = Mapping[str, Any]
_LONGEST = 500
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


def problems(pods: Sequence[Object], events: Sequence[Object], expected: Mapping[str, int]) -> list[Problem]:
    """All problems, first those of pods that cannot be created. A problem of several pods is listed once.

    Args:
        events: of the run's objects and of claims, in any order.
        expected: how many pods of each role should exist now.
    """
    found = [Problem(text) for text in _not_created(pods, events, expected)]
    of_pods: dict[Problem, list[str]] = {}
    for pod in pods:
        for problem in () if is_terminating(pod) else _of_pod(pod, events):
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
    containers = _containers(pod, "containerStatuses")
    return (
        not is_terminating(pod)
        and bool(containers)
        and all("running" in c.get("state", {}) for c in containers)
    )


def time_of(event: Object) -> float:
    """When the event happened last, in seconds since 1970; 0 if it has no time."""
    series = event.get("series") or {}
    times = (event.get("lastTimestamp"), series.get("lastObservedTime"), event.get("eventTime"))
    return max(map(seconds, filter(None, times)), default=0.0)


def seconds(timestamp: str) -> float:
    """Seconds since 1970 of a time as Kubernetes writes it: 2026-11-21T20:00:00Z, or with a fraction."""
    return datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()


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


def _of_pod(pod: Object, events: Sequence[Object]) -> Iterator[Problem]:
    status = pod.get("status", {})
    of_containers = [*_of_containers(pod)]
    yield from of_containers
    if status.get("phase") == "Failed" and status.get("reason"):  # such as Evicted
        yield Problem(_one_line(f"{status['reason']}: {status.get('message', '')}"))
    elif status.get("phase") == "Pending" and not of_containers:
        for condition in status.get("conditions", ()):
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                text = f"{condition.get('reason', '')}: {condition.get('message', '')}"
                yield Problem(_one_line(text + _of_claims(pod, text, events)))
                return
        own = [e for e in events if _is_of(e, "Pod", name_of(pod)) and e.get("type") == "Warning"]
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


def _of_containers(pod: Object) -> Iterator[Problem]:
    for key in ("initContainerStatuses", "containerStatuses"):
        for container in _containers(pod, key):
            if (problem := _of_container(container)) is not None:
                yield problem


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
