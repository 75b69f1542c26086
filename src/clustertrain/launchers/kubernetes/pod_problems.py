"""What keeps the pods of a run from running, read off the pods and the events: each a line. No call in here.

a pod waits for its image, its secret, its volume     its containers say so, or the events of the pod
a pod waits for a node                                the scheduler says why; for a volume, its claim
a pod is not even made                                the events of who makes it: quota, Pod Security
a container was killed at its memory limit            its last state
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
_ON_ITS_WAY = ("ContainerCreating", "PodInitializing", "")
_REASONS_OF_CONTAINERS = ("BackOff", "Failed", "FailedScheduling", "Unhealthy", "Killing")
# Who says that a pod could not be made, and the role of that pod; None: of any.
_MAKERS: Mapping[str, str | None] = {
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
    """A line; `blocks`: nothing goes on until that is mended, while other troubles are over already."""

    text: str
    blocks: bool = True


def problems(pods: Sequence[Object], events: Sequence[Object], expected: Mapping[str, int]) -> list[Problem]:
    """All there are, those that keep pods from being made first; the same of several pods is named once.

    Args:
        events: of the run's objects and of the claims that it uses, any order.
        wanted: how many pods of each role there should be by now.
    """
    found = [Problem(text) for text in _not_made(pods, events, expected)]
    of_pods: dict[Problem, list[str]] = {}
    for pod in pods:
        for problem in () if is_leaving(pod) else _of_pod(pod, events):
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


def is_leaving(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def is_running(pod: Object) -> bool:
    """Whether its containers all run; one that is leaving does not count."""
    containers = _containers(pod, "containerStatuses")
    return (
        not is_leaving(pod) and bool(containers) and all("running" in c.get("state", {}) for c in containers)
    )


def time_of(event: Object) -> float:
    """When it happened last, in seconds since 1970; 0 where it does not say."""
    series = event.get("series") or {}
    times = (event.get("lastTimestamp"), series.get("lastObservedTime"), event.get("eventTime"))
    return max(map(seconds, filter(None, times)), default=0.0)


def seconds(timestamp: str) -> float:
    """A time as Kubernetes writes it: 2026-11-21T20:00:00Z, or with a fraction."""
    return datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()


# ------------------------------------------------------------------------------------------------ not made


def _not_made(pods: Sequence[Object], events: Sequence[Object], expected: Mapping[str, int]) -> Iterator[str]:
    there = [role_of(pod) for pod in pods if not is_leaving(pod)]
    missing = {role for role, number in expected.items() if there.count(role) < number}
    for reason, role in _MAKERS.items():
        if role in missing if role is not None else not there:
            last = _last(event for event in events if event["reason"] == reason)
            if last is not None:
                text = re.sub(r"^.*? is forbidden: ", "", last["message"])  # with a name that changes
                yield f"{_pods_of(role)} cannot be made: {_one_line(text)}"


def _pods_of(role: str | None) -> str:
    return {None: "its pods", "worker": "pods of workers"}.get(role, f"the {role}'s pod")


# ------------------------------------------------------------------------------------------------- of a pod


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
    """Why a claim is not bound, which the scheduler does not say."""
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
        again = ", and started again" if runs else ""
        text = f"container {container['name']} was killed at its memory limit (OOMKilled){again}"
        return Problem(text, blocks=not runs)
    if runs and ended:
        text = f"container {container['name']} ended with code {ended.get('exitCode')}, and was started again"
        return Problem(text, blocks=False)
    if waits.get("reason") == "CrashLoopBackOff":
        code = ended.get("exitCode")
        return Problem(
            f"container {container['name']} ends with code {code}, again and again (CrashLoopBackOff)"
        )
    if waits.get("reason", "") not in _ON_ITS_WAY:
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
