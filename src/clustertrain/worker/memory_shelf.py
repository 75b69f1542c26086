"""The checkpoints in the memory of a node, from which the next start of the workers in an attempt resumes.

They have the format of those in the storage, in a private folder in /dev/shm that ends with the attempt.
With DDP the first rank of each node writes the whole state, with FSDP each rank its part of it. The
driver asks each node what it has (`names_on_node`, `is_sound`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from clustertrain.checkpoints.manifest import (
    MANIFEST,
    SHARDS_OF_MODEL,
    CheckpointDamaged,
    CheckpointFolder,
    CheckpointName,
    names,
    part_files,
    read_manifest,
)
from clustertrain.checkpoints.read import verify
from clustertrain.checkpoints.retention import Retention
from clustertrain.checkpoints.save import Saver
from clustertrain.checkpoints.write import Writer
from clustertrain.errors import StorageError
from clustertrain.node import variables
from clustertrain.node.limits import Limits
from clustertrain.node.units import size_text
from clustertrain.storage import Location, open_store
from clustertrain.worker.place import Place
from clustertrain.worker.restart_plan import RestartPlan

if TYPE_CHECKING:
    from clustertrain.checkpoints.group import SaveGroup

_KEPT = 2  # so that all nodes have one in common when some of them are one further
_ROOM = 4  # the two, one that is being written, and its copy


def memory_shelf(attempt: int) -> CheckpointFolder | None:
    """Return the shelf of an attempt in the memory of this node, or None if the node has no folder for it."""
    folder = Path(os.environ.get(variables.MEMORY_DIR) or "/nonexistent")
    with suppress(OSError):
        found = folder.lstat()
        if found.st_uid == os.getuid() and found.st_mode & 0o777 == 0o700:  # a pod adds the setgid bit
            return CheckpointFolder(open_store(Location(str(folder))), str(attempt))
    return None


def node_group(place: Place) -> SaveGroup:
    """Make the group of the ranks of this node, which write one checkpoint together with FSDP.

    All ranks call it.
    """
    from clustertrain.checkpoints.group import SaveGroup

    nodes: list[Any] = [None] * place.world_size
    dist.all_gather_object(nodes, place.node_rank)
    ranks = {each: [rank for rank, node in enumerate(nodes) if node == each] for each in sorted(set(nodes))}
    groups = {node: SaveGroup(of_node) for node, of_node in ranks.items()}
    return groups[place.node_rank]


def memory_saver(
    shelf: CheckpointFolder,
    plan: RestartPlan,
    place: Place,
    group: SaveGroup | None,
    on_failed: Callable[[str], None],
) -> Saver | None:
    """Make the saver of this rank for the memory of its node, or return None if the rank writes nothing.

    Args:
        group: the ranks of this node that write their parts, with FSDP.
    """
    kind: type[Saver] = Saver
    if group is not None:
        from clustertrain.checkpoints.group import PartWriter
        from clustertrain.checkpoints.shards import MemoryShardSaver

        kind = MemoryShardSaver
    new = partial(kind, background=True, on_saved=lambda **fields: None, on_failed=on_failed)
    if place.local_rank != 0:
        return new(PartWriter(shelf, plan.ref.attempt, plan.restart, group)) if group is not None else None
    _remove_others(shelf, plan.checkpoint)
    writer = Writer(
        shelf=shelf,
        attempt=plan.ref.attempt,
        restart=plan.restart,
        job_sha256="",
        versions={},
        retention=Retention(keep_last=_KEPT),
        still_newest=lambda: True,
        others=group,
    )
    return new(writer)


def _remove_others(shelf: CheckpointFolder, kept: str | None) -> None:
    """Free the memory of all but the checkpoint that this start resumes from."""
    folder = Path(str(shelf)).parent
    for old in folder.iterdir():
        if old.is_dir() and old.name != shelf.key:
            shutil.rmtree(old, ignore_errors=True)  # of an earlier attempt
    for name in names(shelf):
        if str(name) != kept:
            with suppress(OSError):
                shelf.store.remove_tree(f"{shelf.key}/{name}", MANIFEST)


def lacking_room(size_bytes: int, limits: Limits) -> str:
    """Return which memory of a node is too small for checkpoints of this size, or empty."""
    rooms = {"/dev/shm": (limits.shm_bytes or 0) - (limits.shm_used_bytes or 0)}
    rooms["the memory"] = limits.available_bytes or 0
    for cgroup in limits.cgroups:
        if cgroup.limit_bytes is not None:
            rooms[f"the cgroup {cgroup.path}"] = cgroup.limit_bytes - (cgroup.used_bytes or 0)
    what, free_bytes = min(rooms.items(), key=lambda room: room[1])
    if free_bytes >= _ROOM * size_bytes:
        return ""
    return (
        f"{what} of {limits.host} has {size_text(free_bytes)} free, and {_ROOM} times the "
        f"{size_text(size_bytes)} of a checkpoint are needed"
    )


# -- before the next start: called by the driver on one worker of each node -------------------------------


def names_on_node(attempt: int, ranks: Sequence[int], world_size: int) -> list[CheckpointName]:
    """Return the checkpoints from which these ranks of this node could resume."""
    found = list[CheckpointName]()
    if (shelf := memory_shelf(attempt)) is None:
        return found
    for name in names(shelf):
        with suppress(StorageError):
            manifest = read_manifest(shelf, name)
            is_divided = any(file.startswith(SHARDS_OF_MODEL) for file in manifest.files)
            own = {file for rank in ranks for file in part_files(rank, world_size)} if is_divided else set()
            if manifest.world_size == world_size and own <= manifest.files.keys():
                found.append(name)
    return found


def is_sound(attempt: int, name: CheckpointName) -> int | None:
    """Return the epoch of a checkpoint in the memory of this node if all of its bytes verify, else None."""
    shelf = memory_shelf(attempt)
    with suppress(CheckpointDamaged):
        return verify(shelf, name).epoch if shelf is not None else None
    return None
