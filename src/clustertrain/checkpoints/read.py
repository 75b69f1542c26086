"""Reads and verifies checkpoints. docs/guides/checkpoints.md describes the format.

A checkpoint is a folder `<step>-<attempt>.<restart>` whose MANIFEST.json was written last. It is valid if and
only if the manifest verifies. This module needs neither Ray nor torch.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clustertrain.checkpoints.manifest import (
    MANIFEST,
    CheckpointDamaged,
    CheckpointFolder,
    CheckpointName,
    Manifest,
    names,
    read_manifest,
)
from clustertrain.errors import StorageError
from clustertrain.storage.posix import refused
from clustertrain.storage.posix_tree import WrittenFile

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class VerifiedCheckpoint:
    """A verified checkpoint in a folder of this node."""

    path: Path
    manifest: Manifest

    @property
    def name(self) -> CheckpointName:
        return self.manifest.name


def verify(
    shelf: CheckpointFolder, name: CheckpointName | str, files: Collection[str] | None = None
) -> Manifest:
    """Read every byte of a checkpoint and compare it with the manifest.

    Args:
        files: the names of the files to read, or None for all.

    Raises:
        CheckpointDamaged: names the first file that differs, with both sizes or both checksums.
        StorageError: an S3 server does not answer, or refuses.
    """
    manifest = read_manifest(shelf, name)
    for file, entry in _selected(manifest, files).items():
        _read_through(shelf, manifest.name, file, entry, lambda block: None)
    return manifest


def _selected(manifest: Manifest, files: Collection[str] | None) -> dict[str, WrittenFile]:
    return {file: entry for file, entry in manifest.files.items() if files is None or file in files}


def fetch_checkpoint(
    shelf: CheckpointFolder, name: CheckpointName | str, into: Path, files: Collection[str] | None = None
) -> VerifiedCheckpoint:
    """Verify a checkpoint, and return it as a folder of this node.

    On a file system it is verified in place; from S3 it is copied into the folder `into` and verified during
    the copy. An existing copy is used; older ones are removed.

    Args:
        files: the names of the files to verify and to copy, or None for all.

    Raises:
        CheckpointDamaged: as `verify`.
        StorageError: it cannot be read, or `into` cannot be written.
    """
    in_place = shelf.store.local_folder(f"{shelf.key}/{name}")
    if in_place is not None:
        return VerifiedCheckpoint(in_place, verify(shelf, name, files))
    manifest = read_manifest(shelf, name)
    folder = into / str(name)
    if (folder / MANIFEST).exists():
        return VerifiedCheckpoint(folder, manifest)
    shutil.rmtree(into, ignore_errors=True)
    try:
        folder.mkdir(parents=True)
        for file, entry in _selected(manifest, files).items():
            _copy(shelf, manifest.name, file, entry, folder / file)
        (folder / MANIFEST).write_bytes(manifest.to_bytes())
    except OSError as error:
        raise refused(folder, "written", error) from error
    return VerifiedCheckpoint(folder, manifest)


def _copy(shelf: CheckpointFolder, name: CheckpointName, file: str, entry: WrittenFile, to: Path) -> None:
    for last_try in (False, True):
        try:
            with to.open("wb") as target:
                _read_through(shelf, name, file, entry, target.write)
                target.flush()
                return os.fsync(target.fileno())  # a node that loses its power may not keep only the marker
        except CheckpointDamaged:
            if last_try:  # the first failure may be a transfer error, the second is the file
                raise
    return None


def _read_through(
    shelf: CheckpointFolder, name: CheckpointName, file: str, entry: WrittenFile, use: Callable[[bytes], Any]
) -> None:
    """Pass a file to `use`, block by block; CheckpointDamaged if it does not match the manifest."""
    where, digest, found_bytes = shelf.uri(name, file), hashlib.sha256(), 0
    try:
        with shelf.damage_named(where):
            for block in shelf.store.blocks(shelf.file_key(name, file)):
                digest.update(block)
                found_bytes += len(block)
                use(block)
    except FileNotFoundError as error:
        raise CheckpointDamaged(f"{where} is missing.") from error
    if found_bytes != entry.size_bytes:
        raise CheckpointDamaged(
            f"{where} has {found_bytes} bytes, but the manifest lists {entry.size_bytes}."
        )
    if digest.hexdigest() != entry.sha256:
        raise CheckpointDamaged(
            f"{where} has sha256 {digest.hexdigest()}, but the manifest lists {entry.sha256}."
        )


def newest_verified(
    shelf: CheckpointFolder,
    on_damaged: Callable[[CheckpointName, CheckpointDamaged], None],
    into: Path,
    counts: Callable[[CheckpointName], bool] = lambda name: True,
) -> VerifiedCheckpoint | None:
    """Return the newest checkpoint that verifies, falling back one at a time, or None if there are none.

    Args:
        counts: False for a checkpoint that is as good as absent.
        into: the folder for a copy from S3; see `fetch_checkpoint`.

    Raises:
        StorageError: there are checkpoints and none verifies. A restart from step 0 would hide the loss.
    """
    candidates = []
    for name in filter(counts, reversed(names(shelf))):
        candidates.append(name)
        try:
            return fetch_checkpoint(shelf, name, into)
        except CheckpointDamaged as error:
            on_damaged(name, error)
    if candidates:
        raise StorageError(
            f"None of the {len(candidates)} checkpoints in {shelf} verifies.\n"
            "Restore one from a backup, or start over with --fresh, which keeps these."
        )
    return None
