"""The ranks that write one checkpoint together: the first begins it, and commits what all have written.

It has a process group of its own, because it is used by threads while the training uses the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from clustertrain.checkpoints.manifest import CheckpointFolder, CheckpointName, Committed
from clustertrain.errors import StorageError
from clustertrain.storage.posix_tree import WrittenFile
from clustertrain.training.ranks.host import SaveProgress

_TIMEOUT = timedelta(days=1)  # the watchdog ends a write without progress much earlier


class SaveGroup:
    """All ranks of it call `begin`, write, and call `end`, in this order for every save."""

    def __init__(self, ranks: Sequence[int]) -> None:
        """Create the process group of these ranks.

        Every rank of the run makes the same groups, in the same order, also the groups that it is not in.
        """
        self._ranks, self._first = ranks, ranks[0]
        self._group = dist.new_group([*ranks], backend="gloo", timeout=_TIMEOUT)

    def begin(self, handle: str | None) -> str | None:
        """Return the handle of the first rank's tree, on every rank, or None if it does not write."""
        handles = [handle]
        dist.broadcast_object_list(handles, src=self._first, group=self._group)
        return handles[0]

    def end(self, written: dict[str, WrittenFile] | str) -> dict[str, WrittenFile]:
        """Pass on what this rank has written, or its error. Returns, only on the first, the files of all.

        Raises:
            StorageError: on the first rank, if another rank could not write.
        """
        of_ranks: list[Any] = [None] * len(self._ranks)
        is_first = dist.get_rank() == self._first
        dist.gather_object(written, of_ranks if is_first else None, dst=self._first, group=self._group)
        if not is_first:
            return {}
        each = zip(self._ranks, of_ranks, strict=True)
        failed = [f"rank {rank}: {error}" for rank, error in each if isinstance(error, str)]
        if failed:
            raise StorageError(
                f"A part of the checkpoint could not be written by {'; '.join(failed)}\n"
                "Earlier checkpoints were not changed. Free space or make it writable, then run again."
            )
        return {name: file for files in of_ranks for name, file in files.items()}


@dataclass(frozen=True)
class PartWriter:
    """Writes the files of a rank that is not the first into the checkpoint that the first one commits."""

    shelf: CheckpointFolder
    attempt: int
    restart: int
    group: SaveGroup

    def commit(self, files: dict[str, Callable[[Any], None]], progress: SaveProgress) -> Committed:
        """Write the files; as Writer.commit, but an error is raised on the first rank."""
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
        except Exception as error:  # noqa: BLE001  the first rank raises it
            written = f"{type(error).__name__}: {error}"
        self.group.end(written)
        return Committed(name, 0)
