"""Commits checkpoints, and removes those that are no longer kept.

The fence (attempt, restart) decides who may write: a writer that is no longer the newest commits nothing.
Every writer has its own folder names, so a stale writer never changes another writer's files. A checkpoint
that it commits between the check and the last write is not in the list that the newer writer fixed with its
claim, and no later start resumes from it (`run.claims.overtaken_by`). The fence is checked again before
anything is removed: what a newer writer has in its list stays. Leftovers of newer
writers are not collected.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from clustertrain.checkpoints.manifest import (
    MANIFEST,
    CheckpointFolder,
    CheckpointName,
    Committed,
    Manifest,
    read_manifest,
)
from clustertrain.checkpoints.retention import Retention
from clustertrain.errors import StorageError
from clustertrain.storage import Tree
from clustertrain.training.ranks.host import SaveProgress

if TYPE_CHECKING:
    from clustertrain.checkpoints.group import SaveGroup


class StaleWriter(StorageError):
    """This writer's attempt or restart is no longer the newest; it may not commit."""


@dataclass
class Writer:
    """Commits checkpoints of one (attempt, restart)."""

    shelf: CheckpointFolder
    attempt: int
    restart: int
    job_sha256: str
    versions: dict[str, str]
    retention: Retention
    still_newest: Callable[[], bool]  # the fence, checked right before the commit
    others: SaveGroup | None = None  # the other ranks that write files of the same checkpoint
    collected: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.collected = self.shelf.store.collect_leftovers(self.shelf.key, MANIFEST, self._is_older)

    def _is_older(self, tree: str) -> bool:
        name = CheckpointName.parse(tree)
        return name is not None and (name.attempt, name.restart) <= (self.attempt, self.restart)

    def commit(self, files: dict[str, Callable[[Any], None]], progress: SaveProgress) -> Committed:
        """Write the files, then the manifest, make them visible, then prune.

        Args:
            files: for each file name a function that writes the content to an open file.
            progress: goes into the manifest.

        Raises:
            Fenced: a newer attempt or restart has claimed the run; it does not resume from this checkpoint.
            StorageError: the files could not be written; partial files are removed.
        """
        name = CheckpointName(progress.step, self.attempt, self.restart)
        store = self.shelf.store
        handle = None
        try:
            if store.size_or_none(self.shelf.file_key(name)) is not None:
                return Committed(name, 0, self._why_not_again(name, progress))
            tree = store.new_tree(f"{self.shelf.key}/{name}")
            handle = tree.handle
        except OSError as error:
            raise self._not_written(name, error) from error
        finally:
            if self.others is not None:
                self.others.begin(handle)
        try:
            self._write(tree, files)
            self._check_fence(name)
            tree.commit(MANIFEST, self._manifest(tree, progress).to_bytes())
        except OSError as error:
            tree.abort()
            raise self._not_written(name, error) from error
        except BaseException:
            tree.abort()
            raise
        self._check_fence(name)
        return Committed(name, sum(file.size_bytes for file in tree.files.values()), self._prune(name))

    def _why_not_again(self, name: CheckpointName, progress: SaveProgress) -> str | None:
        """Return why a second save of a step is not written, or None if the first one lacks no metric of it.

        It lacks none at a stop right after a periodic save, with the same state.
        """
        with suppress(StorageError):
            saved = read_manifest(self.shelf, name).metrics
            numbers = {key: value for key, value in progress.metrics.items() if not math.isnan(value)}
            if missed := [key for key, value in numbers.items() if saved.get(key) != value]:
                return (
                    f"the second save of step {progress.step} was not written: {name} exists, "
                    f"without this {', '.join(missed)}.\nSave a step once, after its evaluation."
                )
        return None

    def _write(self, tree: Tree, files: dict[str, Callable[[Any], None]]) -> None:
        """Write own files, and add those of the other ranks."""
        try:
            for file_name, write in files.items():
                with tree.create(file_name) as file:
                    write(file)
        finally:
            of_all = self.others.end(tree.files) if self.others is not None else {}
        tree.files.update(of_all)

    def _not_written(self, name: CheckpointName, error: OSError) -> StorageError:
        return StorageError(
            f"Checkpoint {name} could not be written to {self.shelf}: {error}\n"
            "Earlier checkpoints were not changed. Free space or make it writable, then run again."
        )

    def _prune(self, just_committed: CheckpointName) -> str | None:
        """Remove what is no longer kept. Returns why something of it is left; None if nothing is."""
        left: str | None = None
        try:
            for old in self.retention.doomed(self.shelf, just_committed):
                left = self._why_left(old) or left
        except StorageError as error:  # S3 does not answer any more
            left = f"older ones could not be removed: {error}"
        return None if left is None else f"Checkpoint {just_committed} is committed, but {left}"

    def _why_left(self, name: CheckpointName) -> str | None:
        """Remove a checkpoint. Returns why it is still there; None if it is gone."""
        try:
            self.shelf.store.remove_tree(f"{self.shelf.key}/{name}", MANIFEST)
        except FileNotFoundError:
            return None  # another process removed it
        except OSError as error:
            return (
                f"{self.shelf.uri(name)} cannot be removed: {error}\nRemove it by hand, or the disk fills up."
            )
        return None

    def _check_fence(self, name: CheckpointName) -> None:
        if not self.still_newest():
            raise StaleWriter(
                f"Checkpoint {name} does not count: attempt {self.attempt}, restart {self.restart} "
                "is no longer the newest of this run.\nAnother start has taken over; this one ends."
            )

    def _manifest(self, tree: Tree, progress: SaveProgress) -> Manifest:
        return Manifest(
            **asdict(progress),
            job_sha256=self.job_sha256,
            attempt=self.attempt,
            restart=self.restart,
            written_at=time.time(),
            versions=self.versions,
            files=dict(tree.files),
        )
