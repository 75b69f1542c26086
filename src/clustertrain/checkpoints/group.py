"""The ranks that write one checkpoint together: rank 0 begins it, and commits what all have written.

It has a process group of its own, because it is used by threads while the training uses the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from clustertrain.checkpoints.manifest import CheckpointName, Committed, Shelf
from clustertrain.errors import StorageError
from clustertrain.storage.posix_tree import WrittenFile
from clustertrain.training.ranks.host import SaveProgress

_TIMEOUT = timedelta(days=1)  # the watchdog ends a write without progress much earlier


class SaveGroup:
    """All ranks call `begin`, write, and call `end`, in this order for every save."""

    def __init__(self) -> None:
        self._group = dist.new_group(backend="gloo", timeout=_TIMEOUT)

    def begin(self, handle: str | None) -> str | None:
        """The handle of rank 0's tree, on every rank, or None if it does not write."""
        handles = [handle]
        dist.broadcast_object_list(handles, src=0, group=self._group)
        return handles[0]

    def end(self, written: dict[str, WrittenFile] | str) -> dict[str, WrittenFile]:
        """Pass on what this rank has written, or its error. Returns the files of all ranks; only on rank 0.

        Raises:
            StorageError: on rank 0, if another rank could not write.
        """
        of_ranks: list[Any] = [None] * dist.get_world_size()
        is_first = dist.get_rank() == 0
        dist.gather_object(written, of_ranks if is_first else None, dst=0, group=self._group)
        if not is_first:
            return {}
        failed = [f"rank {rank}: {error}" for rank, error in enumerate(of_ranks) if isinstance(error, str)]
        if failed:
            raise StorageError(
                f"A part of the checkpoint could not be written by {'; '.join(failed)}\n"
                "Earlier checkpoints were not changed. Free space or make it writable, then run again."
            )
        return {name: file for files in of_ranks for name, file in files.items()}


@dataclass(frozen=True)
class PartWriter:
    """Writes the files of one rank other than 0 into the checkpoint that rank 0 commits."""

    shelf: Shelf
    attempt: int
    restart: int
    group: SaveGroup

    def commit(self, files: dict[str, Callable[[Any], None]], progress: SaveProgress) -> Committed:
        """Write the files; as Writer.commit, but an error is raised on rank 0."""
        name = CheckpointName(progress.step, self.attempt, self.restart)
        handle = self.group.begin(None)
        if handle is None:
            return Committed(name, 0)
        written: dict[str, WrittenFile] | str
        try:
            tree = self.shelf.store.join_tree(f"{self.shelf.key}/{name}", handle)
            for file_name, write in files.items():
                with tree.create(file_name) as file:
                    write(file)
            written = tree.files
        except Exception as error:  # noqa: BLE001  rank 0 raises it
            written = f"{type(error).__name__}: {error}"
        self.group.end(written)
        return Committed(name, 0)
