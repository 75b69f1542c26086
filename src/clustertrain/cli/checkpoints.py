"""The output of `clustertrain ckpt`: the checkpoints of a run, listed and verified. Does not load torch."""

from __future__ import annotations

import time
from collections.abc import Iterator

from clustertrain.checkpoints.manifest import (
    CheckpointDamaged,
    CheckpointName,
    Manifest,
    Shelf,
    UnknownFormat,
    names,
    read_manifest,
)
from clustertrain.checkpoints.read import verify
from clustertrain.errors import JobError, StorageError
from clustertrain.run.folder import RunDir
from clustertrain.units import aligned, size_text


def list_checkpoints(run: RunDir) -> list[str]:
    """A line for each checkpoint, oldest first. Reads only the manifests."""
    rows: list[tuple[str, ...]] = [("NAME", "STEP", "EPOCH", "WORKERS", "WHY", "SIZE", "WRITTEN", "METRICS")]
    rows += [_row(run.checkpoints, name) for name in names(run.checkpoints)]
    return aligned(rows)


def _row(shelf: Shelf, name: CheckpointName) -> tuple[str, ...]:
    try:
        manifest = read_manifest(shelf, name)
    except (CheckpointDamaged, UnknownFormat) as error:
        why = "damaged" if isinstance(error, CheckpointDamaged) else "unknown"
        return str(name), str(name.step), "-", "-", why, "-", "-", str(error).replace("\n", " ")
    return (
        str(name),
        str(manifest.step),
        str(manifest.epoch),
        str(manifest.world_size),
        manifest.reason,
        size_text(_size_bytes(manifest)),
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest.written_at)),
        ", ".join(f"{metric} {value:.4g}" for metric, value in manifest.metrics.items()),
    )


def _size_bytes(manifest: Manifest) -> int:
    return sum(int(entry["size_bytes"]) for entry in manifest.files.values())


def verify_checkpoints(run: RunDir) -> Iterator[str]:
    """Read every byte of every checkpoint; yields a line for each.

    Raises:
        StorageError: at the end, if any of them is damaged.
    """
    shelf, damaged = run.checkpoints, []
    for name in names(shelf):
        try:
            size_bytes = _size_bytes(verify(shelf, name))
            yield f"{name}  whole, {size_text(size_bytes)}"
        except (CheckpointDamaged, UnknownFormat) as error:
            damaged.append(str(name))
            yield f"{name}  {'damaged' if isinstance(error, CheckpointDamaged) else 'unknown'}: {error}"
    if damaged:
        raise StorageError(
            f"{len(damaged)} of the checkpoints in {shelf} do not verify: {', '.join(damaged)}.\n"
            "A resume skips them. Restore them from a backup, or remove them."
        )


def choose(run: RunDir, name: str | None) -> str:
    """The checkpoint of that name, or the newest one.

    Raises:
        JobError: there is no checkpoint of that name, or none at all.
    """
    shelf = run.checkpoints
    found = [str(n) for n in names(shelf)]
    if not found:
        raise JobError(
            f"{shelf} contains no checkpoint.\n"
            "Train first; `checkpoint.every` in the job file determines when a checkpoint is saved."
        )
    if name is None:
        return found[-1]
    if name not in found:
        raise JobError(f"{shelf} contains no checkpoint {name!r}.\nThere are: {', '.join(found)}.")
    return name
