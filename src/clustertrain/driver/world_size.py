"""How many workers the nodes of a Ray cluster have room for: pure functions, without Ray."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from clustertrain.run_files.records.claim import ResumePoint

_ROUNDING = 1e-6  # Ray counts in units of 1e-4


@dataclass(frozen=True)
class RayNode:
    """A node that Ray calls alive.

    Attributes:
        address, port: of its raylet.
        resources, free: all of its resources, and those that nothing uses; in Ray's units.
        node_id: Ray's id of it.
    """

    address: str
    port: int
    resources: Mapping[str, float]
    free: Mapping[str, float]
    node_id: str = ""


@dataclass(frozen=True)
class Workers:
    """The workers of a start of the group: how many, and Ray's ids of the nodes that have none."""

    count: int
    left_out: frozenset[str] = frozenset()


def room_on(nodes: Iterable[RayNode], each: Mapping[str, float], own: Sequence[str] = ()) -> int:
    """Return the number of workers that the nodes have room for.

    Args:
        each: the resources of one worker.
        own: the addresses of the nodes of the workers that this run has now, one for each worker. Their
            resources are not free, and the next start of the group gets them.
    """
    return sum(
        min(_fit(node.resources, each), _fit(node.free, each) + own.count(node.address)) for node in nodes
    )


def _fit(resources: Mapping[str, float], each: Mapping[str, float]) -> int:
    return min(math.floor(resources.get(kind, 0.0) / need + _ROUNDING) for kind, need in each.items())


def largest(world_sizes: Sequence[int], room: int) -> int | None:
    """Return the largest of these numbers of workers for which there is room, or None if there is none."""
    return max((size for size in world_sizes if size <= room), default=None)


def resize_text(before: ResumePoint | None, now: ResumePoint, most: int) -> str | None:
    """Return the line about a number of workers other than `most` or the last one, else None.

    Args:
        before: the plan of the start of the group before this one, None if this is the first.
    """
    if now.world_size == (before.world_size if before is not None else most):
        return None
    what = f"{now.world_size} of {most} workers"
    if before is None:
        return f"{what}: there is no room for more"
    lost, new = _nodes(before, without=now), _nodes(now, without=before)
    return what + (f": without {lost}" if lost else f": with {new}" if new else "")


def _nodes(plan: ResumePoint, without: ResumePoint) -> str:
    """Return the nodes of a plan that another one does not have: "n2 (10.0.0.2), n3 (10.0.0.3)"."""
    pairs = zip(plan.hosts, plan.addresses, strict=True)
    return ", ".join(dict.fromkeys(f"{host} ({at})" for host, at in pairs if at not in without.addresses))
