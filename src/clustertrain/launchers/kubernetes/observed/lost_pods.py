"""What explains pods that do not work: the state of their nodes, and what their containers printed last.

Both are optional. Nodes are readable only with a ClusterRole; without it, the event of the node controller
shows a lost node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clustertrain.errors import ClusterError
from clustertrain.launchers.kubernetes.cluster.kubectl import Forbidden, Kubectl, NotFound
from clustertrain.launchers.kubernetes.observed.pod_problems import (
    LastWords,
    Object,
    containers_of,
    is_running,
    is_terminating,
    name_of,
    node_of,
    role_of,
    seconds,
)
from clustertrain.launchers.kubernetes.render.fields import at, items

_LINES = 3
_LONGEST = 300
_ANSWER_S = 15.0
_READY_WITHIN_S = 60.0
_GONE = "it is no longer in the cluster"
_SILENT = "Node is not ready"


def lost_nodes(kubectl: Kubectl, pods: Sequence[Object], now: float) -> dict[str, str]:
    """Why nodes of the pods are not ready, by name. Reads nothing if all pods are well.

    Raises:
        Unanswered: the API server does not answer.
    """
    lost = {}
    for name in sorted({node_of(pod) for pod in pods if needs_node_check(pod, now)}):
        try:
            why = _why_not_ready(kubectl.get("node", name))
        except NotFound:
            why = _GONE
        except Forbidden:
            on_it = [pod for pod in pods if node_of(pod) == name]
            why = _SILENT if _by_events(kubectl, on_it) else None
        if why is not None:
            lost[name] = why
    return lost


def needs_node_check(pod: Object, now: float) -> bool:
    """Whether the node of a pod may not answer: the pod is not ready although its containers run, or it still
    exists although its grace period is over."""
    if not node_of(pod):
        return False
    if is_terminating(pod):
        return now > seconds(pod["metadata"]["deletionTimestamp"])
    return is_running(pod) and _condition(pod, "Ready").get("status", "True") != "True"


def _condition(thing: Object, kind: str) -> Mapping[str, str]:
    return next((each for each in items(thing, "status", "conditions") if each["type"] == kind), {})


def _why_not_ready(node: Object) -> str | None:
    ready = _condition(node, "Ready")
    if ready.get("status") == "True":
        return None
    return str(ready.get("message") or ready.get("reason") or "it has not reported its state")


def _by_events(kubectl: Kubectl, pods: Sequence[Object]) -> bool:
    """Whether the node controller has reported the node of one of these pods."""
    names = {name_of(pod) for pod in pods}
    try:
        events = kubectl.events()
    except Forbidden:
        return False
    return any(
        event["reason"] == "NodeNotReady" and event["involvedObject"].get("name") in names for event in events
    )


def last_words(kubectl: Kubectl, pods: Sequence[Object], now: float) -> LastWords:
    """The last lines of containers that ended or never get ready; for each role those of one pod."""
    found: dict[tuple[str, str], str] = {}
    for role, pod, container in silent_containers(pods, now):
        if (role, container) in found:
            continue
        arguments = ("logs", pod, f"--container={container}", f"--tail={_LINES}")
        try:
            lines = kubectl(*arguments, timeout_s=_ANSWER_S).stdout.splitlines()
        except ClusterError:
            continue  # it left no output, or its node does not answer
        text = " / ".join(line.strip() for line in lines if line.strip())
        if text:
            found[role, container] = text if len(text) <= _LONGEST else f"…{text[-_LONGEST:]}"
    return found


def silent_containers(pods: Sequence[Object], now: float) -> list[tuple[str, str, str]]:
    """The containers whose last lines explain a problem: role and name of the pod, name of the container."""
    return [
        (role_of(pod), name_of(pod), str(container["name"]))
        for pod in pods
        if not is_terminating(pod)
        for container in containers_of(pod)
        if _ended_badly(container)
        or (container in items(pod, "status", "containerStatuses") and _is_never_ready(container, now))
    ]


def _ended_badly(container: Object) -> bool:
    state = container.get("state", {})
    before = at(container, "lastState", "terminated") if "waiting" in state else None
    return bool(at(state.get("terminated") or before, "exitCode"))


def _is_never_ready(container: Object, now: float) -> bool:
    """Whether a container has run for a minute and is not ready."""
    started = at(container, "state", "running", "startedAt")
    return bool(started) and container.get("ready") is False and now > seconds(started) + _READY_WITHIN_S
