"""Sends the model of a checkpoint through a pipe, from a cluster whose storage this machine cannot read.

The stream is a tar archive: the manifest, then the files of the model. The receiver detects a stream that was
cut, because the manifest contains their checksums.
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO, cast

from clustertrain.checkpoints.manifest import (
    MANIFEST,
    MODEL_FILE,
    SHARDS_OF_MODEL,
    CheckpointDamaged,
    CheckpointFolder,
    CheckpointName,
    read_manifest,
)
from clustertrain.storage import PosixStore

_BLOCK_BYTES = 1 << 20


def send_model(shelf: CheckpointFolder, name: str, to: BinaryIO) -> None:
    """Write the manifest and the model of a checkpoint as a tar archive; without a model, only the manifest.

    Raises:
        CheckpointDamaged: the manifest does not verify, or the model file has another size.
        StorageError: the storage refuses.
    """
    manifest = read_manifest(shelf, name)
    with tarfile.open(fileobj=to, mode="w|") as archive:
        archive.copybufsize = _BLOCK_BYTES  # type: ignore[attr-defined]  # what it reads with one call
        data = manifest.to_bytes()
        archive.addfile(_member(name, MANIFEST, len(data)), io.BytesIO(data))
        for file in manifest.model_files:
            blocks = shelf.store.blocks(shelf.file_key(name, file), block_bytes=_BLOCK_BYTES)
            source = SimpleNamespace(read=lambda size, blocks=blocks: next(blocks, b"")[:size])
            try:
                archive.addfile(_member(name, file, manifest.files[file].size_bytes), cast(BinaryIO, source))
            except OSError as error:  # tarfile's, if the blocks end early
                raise CheckpointDamaged(f"{shelf.uri(name, file)} cannot be read: {error}") from error


def _is_expected(file: str) -> bool:
    return file in (MANIFEST, MODEL_FILE) or (file.startswith(SHARDS_OF_MODEL) and file == Path(file).name)


def _member(name: str, file: str, size_bytes: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(f"{name}/{file}")
    member.size = size_bytes
    return member


def receive_model(stream: BinaryIO, folder: Path) -> tuple[CheckpointFolder, str]:
    """Write what `send_model` sent below a folder. Returns it as a shelf, and the name of the checkpoint.

    Raises:
        CheckpointDamaged: the stream was cut, or `send_model` did not write it.
        OSError: the folder cannot be written.
    """
    received = None
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                received, _, file = member.name.partition("/")
                source = archive.extractfile(member)
                if CheckpointName.parse(received) is None or not _is_expected(file) or source is None:
                    raise CheckpointDamaged(f"{member.name!r} arrived, not a file of a checkpoint.")
                (folder / received).mkdir(exist_ok=True)
                with (folder / received / file).open("wb") as target:
                    while block := source.read(_BLOCK_BYTES):
                        target.write(block)
    except tarfile.TarError as error:
        raise CheckpointDamaged(f"The checkpoint did not arrive completely: {error}\nTry again.") from error
    if received is None:
        raise CheckpointDamaged("No checkpoint arrived.\nTry again.")
    return CheckpointFolder(PosixStore(folder.parent), folder.name), received
