"""Names and manifests of checkpoints: the format of MANIFEST.json, and the folder of all checkpoints."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from clustertrain.errors import StorageError
from clustertrain.node.units import shortened
from clustertrain.node.version import __version__
from clustertrain.storage import Store
from clustertrain.storage.posix_tree import WrittenFile
from clustertrain.storage.record_file import json_object, typed

FORMAT_VERSION = 1
MANIFEST = "MANIFEST.json"
MODEL_FILE = "model.pt"
SHARDS_OF_MODEL = "model.shard-"  # the prefix of the files with the parts of a divided model
_OWN_SHA256 = "manifest_sha256"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"([0-9]{8,18})-([0-9]{1,18})\.([0-9]{1,18})\Z")


def part_files(rank: int, world_size: int) -> tuple[str, str]:
    """Return the files with the parts of a rank of a divided state: of the model, and of the optimizer."""
    of_rank = f"{rank + 1:05d}-of-{world_size:05d}.safetensors"
    return f"{SHARDS_OF_MODEL}{of_rank}", f"optimizer.shard-{of_rank}"


class CheckpointDamaged(StorageError):
    """A checkpoint whose manifest or files do not verify; the message names the file and both values."""


class CheckpointUnreadable(CheckpointDamaged):
    """The file system did not give its bytes. A later try may succeed."""


class UnknownFormat(StorageError):
    """An undamaged checkpoint in the format of another version of clustertrain."""


@dataclass(frozen=True, order=True)
class CheckpointName:
    """Ordered by step, then by writer: of two checkpoints of a step, the newest writer's is newer."""

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
        return name if str(name) == text else None  # only one spelling, so that a name matches its folder


class Committed(NamedTuple):
    """A checkpoint that counts.

    `left`: why an older one could not be removed, or why this save of its step was not written; None for
    neither.
    """

    name: CheckpointName
    size_bytes: int
    left: str | None = None


@dataclass(frozen=True)
class Manifest:
    """The description of a checkpoint. Sizes in bytes, times in unix seconds."""

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
    metrics: dict[str, int | float]
    files: dict[str, WrittenFile]
    format_version: int = FORMAT_VERSION

    @property
    def name(self) -> CheckpointName:
        return CheckpointName(self.step, self.attempt, self.restart)

    @property
    def model_files(self) -> list[str]:
        """The names of the files with the model."""
        return [file for file in self.files if file == MODEL_FILE or file.startswith(SHARDS_OF_MODEL)]

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.files.values())

    def to_bytes(self) -> bytes:
        """Return the canonical form of this manifest, with a checksum of itself, which detects any change."""
        fields = asdict(self)
        signed = {**fields, _OWN_SHA256: _sha256_of(fields)}
        return json.dumps(signed, indent=1, sort_keys=True).encode() + b"\n"


def _sha256_of(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class CheckpointFolder:
    """The checkpoints of a run: one folder each, under a key of a store."""

    store: Store
    key: str

    def file_key(self, name: CheckpointName | str, file: str = MANIFEST) -> str:
        return f"{self.key}/{name}/{file}"

    def uri(self, name: CheckpointName | str, file: str | None = None) -> str:
        """Return the URI of a checkpoint or one of its files, for messages."""
        return self.store.uri(self.file_key(name, file) if file else f"{self.key}/{name}")

    def __str__(self) -> str:
        return self.store.uri(self.key)

    @contextmanager
    def damage_named(self, where: str) -> Iterator[None]:
        """Turn a read error within the block into CheckpointUnreadable, on a file system.

        There it counts as damage: a bad sector of the disk must not prevent the fallback to an older
        checkpoint. An error of an unreachable S3 server does not count as damage.
        """
        try:
            yield
        except StorageError as error:
            if self.store.local_folder(self.key) is None:
                raise
            raise CheckpointUnreadable(f"{where} cannot be read: {error}") from error


def read_manifest(shelf: CheckpointFolder, name: CheckpointName | str) -> Manifest:
    """Parse the manifest of a checkpoint.

    Raises:
        CheckpointDamaged: it is missing, not JSON, lacks a field, does not match its own checksum, or is
            of another checkpoint.
        UnknownFormat: another version of clustertrain wrote it, in a format that this one cannot read.
        StorageError: an S3 server does not answer, or refuses.
    """
    where = shelf.uri(name, MANIFEST)
    with shelf.damage_named(where):
        data = shelf.store.read_or_none(shelf.file_key(name))
    if data is None:
        raise CheckpointDamaged(f"{where} is missing: the checkpoint is incomplete.")
    try:
        value = json_object(data)
        if value.get("format_version") != FORMAT_VERSION:
            raise _refused_version(where, value)
        manifest = typed(Manifest, value)
        _check_files(manifest.files)
    except (ValueError, RecursionError) as error:
        raise CheckpointDamaged(f"{where} is not a manifest: {shortened(str(error), 200)}") from error
    if manifest.to_bytes() != data:
        raise CheckpointDamaged(f"{where} does not match its own checksum: it was changed.")
    if str(manifest.name) != str(name):
        raise CheckpointDamaged(f"{where} is of {manifest.name}, not of its folder.")
    return manifest


def newest_manifest(shelf: CheckpointFolder) -> Manifest | None:
    """Return the newest manifest that is not damaged, or None; raises otherwise as `read_manifest`."""
    for name in reversed(names(shelf)):
        with suppress(CheckpointDamaged):
            return read_manifest(shelf, name)
    return None


def _check_files(files: dict[str, WrittenFile]) -> None:
    for name, file in files.items():
        if name != Path(name).name or name in ("", "..") or not name.isprintable():
            raise ValueError(f"files has {name!r}, which is not a plain name")
        if file.size_bytes < 0 or not _SHA256.fullmatch(file.sha256):
            raise ValueError(f"files.{name} has the size {file.size_bytes} and the sha256 {file.sha256!r}")


def _refused_version(where: str, value: dict[str, Any]) -> StorageError:
    """Return the error for another format version.

    If the manifest matches its checksum, it is not damaged: falling back to an older checkpoint would lose
    steps without notice.
    """
    found, own = value.get("format_version"), value.pop(_OWN_SHA256, None)
    text = f"{where} has format version {found!r}; clustertrain {__version__} reads version {FORMAT_VERSION}."
    if own != _sha256_of(value):
        return CheckpointDamaged(text)
    versions = value.get("versions")
    wrote = versions.get("clustertrain") if isinstance(versions, dict) else None
    return UnknownFormat(
        f"{text}\nInstall clustertrain {wrote or 'as new as the one that wrote it'}, or newer."
    )


def names(shelf: CheckpointFolder) -> list[CheckpointName]:
    """Return all checkpoint names, oldest first, verified or not."""
    found = (CheckpointName.parse(name) for name in shelf.store.trees(shelf.key, MANIFEST))
    return sorted(name for name in found if name is not None)
