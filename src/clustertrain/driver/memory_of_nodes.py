"""The state in the memory of the nodes from which a start of the workers resumes.

The ranks that were alive have written it, each on its node (worker/last_step.py). A node on which no rank was
alive gets a copy; of the dead ranks it has the own parts, without which the state is of no use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError

from clustertrain.run.claims import overtaken_by
from clustertrain.run.folder import Restart
from clustertrain.run.streams.events import EventLog
from clustertrain.worker.last_step import (
    KeptOnNode,
    KeptState,
    kept_on_node,
    make_room,
    newest_usable,
    read_piece,
    write_piece,
)

_ANSWER_S = 120.0  # to verify the states in the memory of a node
_PIECE_BYTES = 16 << 20  # pieces pass through Ray's object store, which has 128 MiB on each node


@dataclass(frozen=True)
class _Node:
    """A node: one of its workers, the ranks that are there now, and what its memory has."""

    worker: Any
    ranks: frozenset[int]
    kept: KeptOnNode


def newest_in_memory(
    restart: Restart, workers: Sequence[Any], committed_step: int, *, keeps_best: bool
) -> KeptState | None:
    """The newest state that is newer than the checkpoint of `committed_step` in the storage; afterwards each
    node has it. None if there is no such state.

    Args:
        workers: those of Ray Train's worker group.
        keeps_best: see `newest_usable`.
    """
    try:
        nodes = _nodes(restart.attempt.n, workers)
        states = [
            state
            for state in frozenset[KeptState]().union(*(node.kept.states for node in nodes))
            if all(node.kept.serves(state, node.ranks) for node in nodes)
            and overtaken_by(state.name, restart) is None
        ]
        newest = newest_usable(states, len(workers), committed_step, keeps_best=keeps_best)
        return newest if newest is not None and _is_on_each(newest, nodes) else None
    except RayError as error:
        text = f"the last step in the memory of the nodes is not used: {error}"
        EventLog(restart.attempt.events).write("warning", text=text)
        return None


def _nodes(attempt: int, workers: Sequence[Any]) -> list[_Node]:
    ranks: dict[int, set[int]] = {}
    for context in (worker.distributed_context for worker in workers):
        ranks.setdefault(context.node_rank, set()).add(context.world_rank)
    firsts = [worker for worker in workers if worker.distributed_context.local_rank == 0]
    found = ray.get([worker.execute_async(kept_on_node, attempt) for worker in firsts], timeout=_ANSWER_S)
    return [
        _Node(worker, frozenset(ranks[worker.distributed_context.node_rank]), kept)
        for worker, kept in zip(firsts, found, strict=True)
    ]


def _is_on_each(state: KeptState, nodes: Sequence[_Node]) -> bool:
    """Copy a state to the nodes that lack it. Returns whether each has it now."""
    source = next(node.worker for node in nodes if state in node.kept.states)
    targets = [node.worker for node in nodes if state not in node.kept.states]
    if not all(_asked(targets, make_room, state.name, sum(state.files.values()))):
        return False
    for file, size_bytes in state.files.items():
        for offset in range(0, size_bytes, _PIECE_BYTES):
            piece = source.execute_async(read_piece, state.name, file, offset, _PIECE_BYTES)
            _asked(targets, write_piece, state.name, file, piece)
    return all(state in kept.states for kept in _asked(targets, kept_on_node, state.name.attempt))


def _asked(workers: Sequence[Any], function: Any, *args: Any) -> list[Any]:
    """What each worker answers; Ray passes the result of another call as an argument."""
    answers: list[Any] = ray.get([w.execute_async(function, *args) for w in workers], timeout=_ANSWER_S)
    return answers
