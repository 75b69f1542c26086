"""Nodes with a broken GPU, which the next starts of the worker group do not use.

The records of the failures name them: Ray Train's controller may be a process of its own, and the driver
makes a new one for a larger group.
"""

from __future__ import annotations

from collections.abc import Iterable

from clustertrain.run.folder import Attempt

_NODE_ID = "ray.io/node-id"  # a label that each node of Ray has


def excluded_nodes(attempt: Attempt) -> set[str]:
    """Ray's ids of the nodes that the starts of this attempt leave out."""
    failures = (restart.failure.read() for restart in attempt.restarts())
    return {failure.broken_node for failure in failures if failure is not None and failure.broken_node}


def node_selector(left_out: Iterable[str]) -> dict[str, str] | None:
    """Ray's label selector for all other nodes, or None for all nodes."""
    ids = ",".join(sorted(left_out))
    return {_NODE_ID: f"!in({ids})"} if ids else None
