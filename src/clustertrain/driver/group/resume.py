"""Chooses the checkpoint from which a start of the workers resumes.

It is the newest in the storage that verifies, or a newer one of an earlier start in the same attempt that is
in the memory of each node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clustertrain.checkpoints.manifest import CheckpointDamaged, CheckpointName
from clustertrain.checkpoints.read import newest_verified
from clustertrain.driver.calls import Worker, answers, first_of_each_node
from clustertrain.run_files.claims import overtaken_by
from clustertrain.run_files.folder.run_dir import Restart
from clustertrain.run_files.streams.event_log import EventLog
from clustertrain.worker.memory_shelf import is_sound, names_on_node

_ANSWER_S = 120.0  # to verify a checkpoint in the memory of a node


@dataclass(frozen=True)
class Resumed:
    """A verified checkpoint. `world_size`: of the ranks that wrote it."""

    name: CheckpointName
    epoch: int
    world_size: int
    in_memory: bool = False


def newest_checkpoint(restart: Restart, workers: Sequence[Worker]) -> Resumed | None:
    """Return the checkpoint for these workers, or None if there is none.

    Raises:
        StorageError: there are checkpoints in the storage and none verifies.
    """
    attempt, events = restart.attempt, EventLog(restart.attempt.events)

    def fell_back(name: CheckpointName, error: CheckpointDamaged) -> None:
        events.write("fallback", checkpoint=str(name), why=str(error))

    def counts(name: CheckpointName) -> bool:
        if (by := overtaken_by(name, restart)) is None:
            return True
        over = f"attempt {by.attempt.n}, restart {by.number} had taken over before it was committed"
        events.write("warning", text=f"checkpoint {name} is passed over: {over}")
        return False

    found = newest_verified(attempt.run.checkpoints, fell_back, attempt.checkpoint_copy, counts)
    manifest = found.manifest if found is not None else None
    stored = Resumed(manifest.name, manifest.epoch, manifest.world_size) if manifest is not None else None
    if restart.number == 0:
        return stored
    try:
        return _newest_in_memory(restart, workers, stored.name.step if stored is not None else 0) or stored
    except Exception as error:  # noqa: BLE001  the storage has a checkpoint
        why = str(error).strip().rpartition("\n")[2]  # of a traceback the last line
        events.write("warning", text=f"the checkpoints in the memory of the nodes are not used: {why}")
        return stored


def _newest_in_memory(restart: Restart, workers: Sequence[Worker], stored_step: int) -> Resumed | None:
    """Return the newest checkpoint after `stored_step` that is whole in the memory of each node."""
    attempt, firsts, ranks = restart.attempt.n, first_of_each_node(workers), dict[int, list[int]]()
    for context in (worker.distributed_context for worker in workers):
        ranks.setdefault(context.node_rank, []).append(context.world_rank)
    of_nodes = [(first, ranks[first.distributed_context.node_rank]) for first in firsts]
    asked = [w.execute_async(names_on_node, attempt, own, len(workers)) for w, own in of_nodes]
    on_all = set.intersection(*map(set, answers(asked, _ANSWER_S)))
    for name in sorted((name for name in on_all if name.step > stored_step), reverse=True):
        if overtaken_by(name, restart) is None:
            epochs = answers([w.execute_async(is_sound, attempt, name) for w in firsts], _ANSWER_S)
            if None not in epochs:
                return Resumed(name, epochs[0], len(workers), in_memory=True)
    return None
