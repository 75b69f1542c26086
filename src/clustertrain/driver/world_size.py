"""How many workers the nodes of a Ray cluster have room for: pure functions, without Ray."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
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


def resize_text(
    before: ResumePoint | None, now: ResumePoint, most: int, alive: Callable[[], Iterable[RayNode]]
) -> str | None:
    """Return the line that explains a number of workers other than `most` or the last one, else None.

    Args:
        before: the plan of the start of the group before this one, None if this is the first.
        alive: returns the nodes that Ray calls alive.
    """
    if now.world_size == (before.world_size if before is not None else most):
        return None
    what = f"{now.world_size} of {most} workers"
    if before is None:
        return f"{what}: there is no room for more"
    if now.world_size < before.world_size:
        names = _names(before, without={node.address for node in alive()})
        return f"{what}: {names} gone" if names else f"{what}: there is no room for more"
    names = _names(now, without=set(before.addresses))
    return f"{what}: {names} new" if names else f"{what}: there is room for them"


def _names(plan: ResumePoint, without: set[str]) -> str:
    """Return the nodes of a plan with other addresses than `without`: "node a is", "nodes a and b are"."""
    chosen = [pair for pair in zip(plan.hosts, plan.addresses, strict=True) if pair[1] not in without]
    is_unique = len(set(plan.hosts)) == len(set(plan.addresses))
    names = list(dict.fromkeys(host if is_unique else f"{host} ({address})" for host, address in chosen))
    if len(names) < 2:
        return f"node {names[0]} is" if names else ""
    return f"nodes {', '.join(names[:-1])} and {names[-1]} are"
