"""Checkpoints: commit, verify, fall back, prune. The format is described in docs/checkpoints.md.

A checkpoint is a folder `<step>-<attempt>.<restart>` whose MANIFEST.json was written last. It exists if and
only if the manifest verifies. Nothing here needs Ray; the submit side lists checkpoints without torch.

Who may write is decided by the fence (attempt, restart): a writer that is no longer the newest commits
nothing. Every writer has folder names of its own, so a stale one never touches a good one's bytes; what it
commits between the check and the rename is not on the list that the newer one fixed when it claimed.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from clustertrain.errors import StorageError
from clustertrain.storage.tree import PosixTree, collect_leftovers, remove_tree

FORMAT_VERSION = 1
MANIFEST = "MANIFEST.json"
_OWN_SHA256 = "manifest_sha256"
_NAME = re.compile(r"^(\d{8,})-(\d+)\.(\d+)$")
_CHUNK_BYTES = 1 << 20


class CheckpointDamaged(StorageError):
    """A checkpoint whose manifest or files do not verify; the text names the file and both figures."""


class Fenced(StorageError):
    """This writer's attempt or restart is no longer the newest; it may not commit."""


@dataclass(frozen=True, order=True)
class CheckpointName:
    """Orders by step, then by who wrote it: the newest writer's view of a step wins."""

    step: int
    attempt: int
    restart: int

    def __str__(self) -> str:
        return f"{self.step:08d}-{self.attempt}.{self.restart}"

    @classmethod
    def parse(cls, text: str) -> CheckpointName | None:
        match = _NAME.match(text)
        if match is None:
            return None
        name = cls(*(int(group) for group in match.groups()))
        return name if str(name) == text else None  # one spelling, so that a name always finds its folder


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint holds. Sizes in bytes, times in unix seconds."""

    step: int
    epoch: int
    samples_seen: int
    world_size: int
    job_sha256: str
    attempt: int
    restart: int
    reason: str
    written_at: float
    versions: dict[str, str]
    metrics: dict[str, float]
    files: dict[str, dict[str, Any]]
    format_version: int = FORMAT_VERSION

    def to_bytes(self) -> bytes:
        """The one spelling of this manifest, with a checksum of itself: a flipped digit is seen."""
        fields = asdict(self)
        digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
        return json.dumps({**fields, _OWN_SHA256: digest}, indent=1, sort_keys=True).encode() + b"\n"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read back and found whole."""

    name: CheckpointName
    path: Path
    manifest: Manifest


def read_manifest(folder: Path) -> Manifest:
    """Parse the manifest of a checkpoint folder.

    Raises:
        CheckpointDamaged: it is missing, not JSON, lacks a field, names another format version, or does not
            match its own checksum.
    """
    path = folder / MANIFEST
    try:
        data = path.read_bytes()
        value = json.loads(data)
    except FileNotFoundError:
        raise CheckpointDamaged(f"{path} is missing: the checkpoint was never finished.") from None
    except OSError as error:
        raise CheckpointDamaged(f"{path} cannot be read: {error}") from error
    except ValueError as error:
        raise CheckpointDamaged(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict) or value.get("format_version") != FORMAT_VERSION:
        found = value.get("format_version") if isinstance(value, dict) else type(value).__name__
        raise CheckpointDamaged(
            f"{path} has format version {found!r}; this version of clustertrain reads {FORMAT_VERSION}."
        )
    try:
        manifest = Manifest(**{key: item for key, item in value.items() if key != _OWN_SHA256})
        if manifest.to_bytes() != data:
            raise CheckpointDamaged(f"{path} does not match its own checksum: a part of it was changed.")
        for name, entry in manifest.files.items():
            if not isinstance(entry["size_bytes"], int) or not isinstance(entry["sha256"], str):
                raise TypeError(f"files.{name} has no size and sha256")
            if name != Path(name).name:
                raise TypeError(f"files has {name!r}, which is not a plain name")
    except (TypeError, KeyError, AttributeError) as error:
        raise CheckpointDamaged(f"{path} is not a manifest: {error}") from error
    return manifest


def verify(folder: Path) -> Checkpoint:
    """Read every byte of a checkpoint and compare it with the manifest.

    Raises:
        CheckpointDamaged: names the first file that differs, with both sizes or both checksums.
    """
    name = CheckpointName.parse(folder.name)
    if name is None:
        raise CheckpointDamaged(f"{folder} is not named <step>-<attempt>.<restart>.")
    manifest = read_manifest(folder)
    if (manifest.step, manifest.attempt, manifest.restart) != (name.step, name.attempt, name.restart):
        raise CheckpointDamaged(
            f"{folder / MANIFEST} is of {manifest.step}-{manifest.attempt}.{manifest.restart}, "
            "not of the folder it lies in."
        )
    for file_name, entry in manifest.files.items():
        _verify_file(folder / file_name, entry["size_bytes"], entry["sha256"])
    return Checkpoint(name, folder, manifest)


def _verify_file(path: Path, size_bytes: int, sha256: str) -> None:
    digest = hashlib.sha256()
    try:
        found_bytes = path.stat().st_size
        if found_bytes != size_bytes:
            raise CheckpointDamaged(f"{path} has {found_bytes} bytes, the manifest says {size_bytes}.")
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise CheckpointDamaged(f"{path} cannot be read: {error}") from error
    if digest.hexdigest() != sha256:
        raise CheckpointDamaged(f"{path} has sha256 {digest.hexdigest()}, the manifest says {sha256}.")


def names(checkpoints: Path) -> list[CheckpointName]:
    """All checkpoint names under the folder, oldest first, verified or not."""
    if not checkpoints.is_dir():
        return []
    found = (CheckpointName.parse(path.name) for path in checkpoints.iterdir())
    return sorted(name for name in found if name is not None)


def newest_verified(
    checkpoints: Path, on_damaged: Callable[[CheckpointName, CheckpointDamaged], None]
) -> Checkpoint | None:
    """The newest checkpoint that verifies, falling back one at a time; None when there never was one.

    Raises:
        StorageError: there are checkpoints and none verifies. Training from step 0 would hide the loss.
    """
    candidates = names(checkpoints)
    for name in reversed(candidates):
        try:
            return verify(checkpoints / str(name))
        except CheckpointDamaged as error:
            on_damaged(name, error)
    if candidates:
        raise StorageError(
            f"None of the {len(candidates)} checkpoints in {checkpoints} verifies.\n"
            "Restore one from a backup, or begin again with `clustertrain run --fresh`, which keeps these."
        )
    return None


@dataclass(frozen=True)
class Retention:
    """Which checkpoints stay: the newest `keep_last`, and the best by a metric of the manifest."""

    keep_last: int = 3
    best_metric: str | None = None
    best_mode: str = "max"

    def doomed(self, checkpoints: Path, just_committed: CheckpointName) -> list[CheckpointName]:
        """The names that may go. The one just committed, which verified, always stays."""
        everything = names(checkpoints)
        kept = set(everything[-self.keep_last :]) | {just_committed}
        if self.best_metric is not None:
            kept |= self._best(checkpoints, everything)
        return [name for name in everything if name not in kept]

    def _best(self, checkpoints: Path, everything: Iterable[CheckpointName]) -> set[CheckpointName]:
        scored = []
        for name in everything:
            try:
                value = read_manifest(checkpoints / str(name)).metrics.get(self.best_metric or "")
            except CheckpointDamaged:
                continue  # it cannot be the best; whether it goes is decided by its age
            if value is not None and math.isfinite(value):  # NaN compares as neither better nor worse
                scored.append((value if self.best_mode == "max" else -value, name))
        return {max(scored)[1]} if scored else set()


@dataclass
class Writer:
    """Commits checkpoints of one (attempt, restart) under `checkpoints`."""

    checkpoints: Path
    attempt: int
    restart: int
    job_sha256: str
    versions: dict[str, str]
    retention: Retention
    still_newest: Callable[[], bool]  # the fence, asked right before the commit
    collected: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        self.collected = collect_leftovers(self.checkpoints)

    def commit(
        self, files: dict[str, Callable[[Any], None]], progress: dict[str, Any]
    ) -> tuple[CheckpointName, int]:
        """Write the files, the manifest last, make them visible, then prune. Returns the name and bytes.

        Args:
            files: for each file name a function that writes its bytes to the open file it is given.
            progress: step, epoch, samples_seen, world_size, metrics, reason.

        Raises:
            Fenced: a newer attempt or restart has claimed the run; nothing was committed.
            StorageError: the bytes could not be written; what was begun is removed.
        """
        name = CheckpointName(progress["step"], self.attempt, self.restart)
        if (self.checkpoints / str(name)).exists():  # a stop right after a periodic save: the same bytes
            return name, 0
        try:
            tree = PosixTree(self.checkpoints / str(name))
        except OSError as error:
            raise self._not_written(name, error) from error
        try:
            for file_name, write in files.items():
                with tree.create(file_name) as file:
                    write(file)
            self._check_fence(name)
            tree.commit(MANIFEST, self._manifest(tree, progress).to_bytes())
        except OSError as error:
            tree.abort()
            raise self._not_written(name, error) from error
        except BaseException:
            tree.abort()
            raise
        self._prune(name)
        return name, sum(file.size_bytes for file in tree.files.values())

    def _not_written(self, name: CheckpointName, error: OSError) -> StorageError:
        return StorageError(
            f"Checkpoint {name} could not be written to {self.checkpoints}: {error}\n"
            "The checkpoints before it are untouched. Free space or make it writable, then run again."
        )

    def _prune(self, just_committed: CheckpointName) -> None:
        for old in self.retention.doomed(self.checkpoints, just_committed):
            try:
                remove_tree(self.checkpoints / str(old))
            except FileNotFoundError:
                continue  # someone else removed it
            except OSError as error:
                raise StorageError(
                    f"Checkpoint {just_committed} is committed, but {self.checkpoints / str(old)} "
                    f"cannot be removed: {error}\nRemove it by hand, or the disk fills up."
                ) from error

    def _check_fence(self, name: CheckpointName) -> None:
        if not self.still_newest():
            raise Fenced(
                f"Checkpoint {name} is not committed: attempt {self.attempt}, restart {self.restart} "
                "is no longer the newest of this run.\nAnother start has taken over; this one ends."
            )

    def _manifest(self, tree: PosixTree, progress: dict[str, Any]) -> Manifest:
        return Manifest(
            step=progress["step"],
            epoch=progress["epoch"],
            samples_seen=progress["samples_seen"],
            world_size=progress["world_size"],
            job_sha256=self.job_sha256,
            attempt=self.attempt,
            restart=self.restart,
            reason=progress["reason"],
            written_at=time.time(),
            versions=self.versions,
            metrics=progress["metrics"],
            files={name: asdict(file) for name, file in tree.files.items()},
        )
