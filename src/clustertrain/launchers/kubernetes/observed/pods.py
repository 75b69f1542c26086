"""The pods of a run, and the reports of the cluster on pods that do not run.

The functions are pure.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from clustertrain.launchers.kubernetes.render.pods import ROLE_LABEL

Object = Mapping[str, Any]


def at(value: Any, *keys: str) -> Any:
    """Return the value at these keys, or None if a key is missing or one before the last is not a mapping."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def mapping(value: Any, *keys: str) -> Object:
    """Return the mapping at these keys, or an empty one."""
    found = at(value, *keys)
    return found if isinstance(found, Mapping) else {}


def items(value: Any, *keys: str) -> list[Any]:
    """Return the list at these keys, or an empty one."""
    found = at(value, *keys)
    return found if isinstance(found, list) else []


def role_of(pod: Object) -> str:
    """Return the role of a pod: head, worker, submitter or reader."""
    return str(at(pod, "metadata", "labels", ROLE_LABEL) or "")


def name_of(thing: Object) -> str:
    return str(thing["metadata"]["name"])


def node_of(pod: Object) -> str:
    """Return the node that a pod is bound to, or an empty text if there is none yet."""
    return str(at(pod, "spec", "nodeName") or "")


def is_terminating(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def is_running(pod: Object) -> bool:
    """Return whether all containers of the pod run; a pod that is terminating does not count as running."""
    return not is_terminating(pod) and has_running_containers(pod)


def has_running_containers(pod: Object) -> bool:
    """Return whether all containers run.

    On a lost node this is unknown, and nothing can be read from it.
    """
    containers = items(pod, "status", "containerStatuses")
    run = bool(containers) and all("running" in each.get("state", {}) for each in containers)
    return run and not is_lost(pod)


def has_started(pod: Object) -> bool:
    """Return whether the containers of the pod run, or have ended."""
    return at(pod, "status", "phase") in ("Running", "Succeeded", "Failed")


def is_lost(pod: Object) -> bool:
    """Return whether the node of a pod does not answer: the pod is not ready, but its containers were."""
    conditions = {each["type"]: each["status"] for each in items(pod, "status", "conditions")}
    were_ready = [bool(each.get("ready")) for each in items(pod, "status", "containerStatuses")]
    return conditions.get("Ready") == "False" and bool(were_ready) and all(were_ready)


def seconds(timestamp: str) -> float:
    """Return the seconds since 1970 of a time in the format of Kubernetes.

    The format is 2026-11-21T20:00:00Z, or the same with a fraction.
    """
    return datetime.fromisoformat(timestamp).timestamp()


def time_of(event: Object) -> float:
    """Return when the event happened last, in seconds since 1970, or 0 if it has no time."""
    times = (event.get("lastTimestamp"), at(event, "series", "lastObservedTime"), event.get("eventTime"))
    return max(map(seconds, filter(None, times)), default=0.0)


def troubles(pods: Sequence[Object], events: Sequence[Object], *, missing: bool) -> list[str]:
    """Return a line for each lost node, and the newest event of each pod that does not run.

    Args:
        events: of the run's objects.
        missing: pods that should exist do not: then the warnings about the objects that create them count.
    """
    newest = {
        (each["involvedObject"]["kind"], each["involvedObject"]["name"]): each
        for each in sorted(events, key=time_of)
    }
    silent = {name_of(pod) for pod in pods if not (is_terminating(pod) or is_lost(pod) or is_well(pod))}
    found = [
        f"{kind} {name}: {event['reason']}: {' '.join(event['message'].split())}"
        for (kind, name), event in newest.items()
        if (name in silent if kind == "Pod" else missing and event.get("type") == "Warning")
    ]
    return [*_lost_nodes(pods), *found]


def is_well(pod: Object) -> bool:
    """Return whether the pod runs and is ready, or has ended as it should."""
    is_ready = all(each.get("ready") is not False for each in items(pod, "status", "containerStatuses"))
    return at(pod, "status", "phase") == "Succeeded" or (is_running(pod) and is_ready)


def _lost_nodes(pods: Sequence[Object]) -> Iterator[str]:
    lost = [pod for pod in pods if is_lost(pod)]
    for node in sorted({node_of(pod) for pod in lost}):
        names = ", ".join(name_of(pod) for pod in lost if node_of(pod) == node)
        yield (
            f"node {node} is NotReady, with {names}. KubeRay replaces a pod only when it is gone. "
            f"If the machine does not come back: kubectl delete node {shlex.quote(node)}"
        )
