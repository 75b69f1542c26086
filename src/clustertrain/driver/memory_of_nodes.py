"""The state in the memory of the nodes from which a start of the workers resumes.

The ranks that were alive have written it, each on its node (worker/last_step.py). The own part of a rank is
on the node where that rank was. A node gets a copy of what it lacks: of the state, if no rank was alive on
it, and of the own part of a rank that was elsewhere, because Ray Train numbers the ranks anew at each start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clustertrain.driver.calls import answer, answers
from clustertrain.run.claims import overtaken_by
from clustertrain.run.folder import Restart
from clustertrain.run.streams.event_log import EventLog
from clustertrain.worker.last_step import (
    KeptFile,
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
            if _is_whole(state, nodes) and overtaken_by(state.name, restart) is None
        ]
        newest = newest_usable(states, len(workers), committed_step, keeps_best=keeps_best)
        return newest if newest is not None and _is_on_each(newest, nodes) else None
    except Exception as error:  # noqa: BLE001  the storage has a checkpoint
        why = str(error).strip().rpartition("\n")[2]  # of a traceback the last line
        text = f"the last step in the memory of the nodes is not used: {why}"
        EventLog(restart.attempt.events).write("warning", text=text)
        return None


def _nodes(attempt: int, workers: Sequence[Any]) -> list[_Node]:
    ranks: dict[int, set[int]] = {}
    for context in (worker.distributed_context for worker in workers):
        ranks.setdefault(context.node_rank, set()).add(context.world_rank)
    firsts = [worker for worker in workers if worker.distributed_context.local_rank == 0]
    found = answers([worker.execute_async(kept_on_node, attempt) for worker in firsts], _ANSWER_S)
    return [
        _Node(worker, frozenset(ranks[worker.distributed_context.node_rank]), kept)
        for worker, kept in zip(firsts, found, strict=True)
    ]


def _is_whole(state: KeptState, nodes: Sequence[_Node]) -> bool:
    """Whether the nodes together have all that the ranks need."""
    has = set[KeptFile]().union(*(node.kept.sizes_bytes for node in nodes))
    return state.needed_by(rank for node in nodes for rank in node.ranks) <= has


def _is_on_each(state: KeptState, nodes: Sequence[_Node]) -> bool:
    """Copy to each node what its ranks lack. Returns whether each has all of it then."""
    sources = {file: node for node in nodes for file in node.kept.sizes_bytes}
    for node in nodes:
        needed = state.needed_by(node.ranks)
        lacking = sorted(needed - node.kept.sizes_bytes.keys())
        if not lacking:
            continue
        sizes_bytes = {file[0]: sources[file].kept.sizes_bytes[file] for file in lacking}
        if not _asked(node.worker, make_room, sizes_bytes):
            return False
        for file in lacking:
            path, source = file[0], sources[file].worker
            for offset in range(0, sizes_bytes[path], _PIECE_BYTES):
                piece = source.execute_async(read_piece, path, offset, _PIECE_BYTES)
                _asked(node.worker, write_piece, path, piece)
        kept: KeptOnNode = _asked(node.worker, kept_on_node, state.name.attempt)
        if not needed <= kept.sizes_bytes.keys():
            return False
    return True


def _asked(worker: Any, function: Any, *args: Any) -> Any:
    """What a worker answers; Ray passes the result of another call as an argument."""
    return answer(worker.execute_async(function, *args), _ANSWER_S)
