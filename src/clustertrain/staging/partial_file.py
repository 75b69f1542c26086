"""A partial download of one file, and the record of its pieces from which another process can resume.

    download      the bytes, each at its final offset
    progress      4 KiB: validator and total size as JSON; then for each recorded piece its offset and length
                  (u64), and its crc32 (u32)

A piece is recorded when it has the size of a part, or when its stream ends. So a kill costs at most one part
of each stream. There is no fsync: a process that resumes after a kill or a crash of the machine uses
only the pieces that match their crc32. Download libraries record which parts were received, without
checksums.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from clustertrain.record_file import json_object, typed
from clustertrain.regular_file import read_file
from clustertrain.storage.posix import refused

_CHUNK_BYTES = 1 << 20
_HEADER_BYTES = 4096
_ENTRY = struct.Struct("<QQI")

Piece = tuple[int, int, int]
"""Offset, length and crc32."""

Tick = Callable[[int, int | None], None]
"""Called often with the bytes present and the total (None: unknown). An exception that it raises ends the
work."""


@dataclass(frozen=True)
class Progress:
    """The content of a progress file.

    Attributes:
        validator: the version of the source, or None if it has no versions.
        total_bytes: its length, or None if it gave none.
        pieces: those that are recorded; the others are the JSON.
    """

    validator: str | None
    total_bytes: int | None
    pieces: Sequence[Piece] = ()

    @property
    def size_bytes(self) -> int:
        return sum(length for _, length, _ in self.pieces)


def read_progress(folder: Path) -> Progress | None:
    """The content of the progress file in a folder, if there is something to resume from."""
    try:
        data = read_file(folder / "progress")
        header = typed(Progress, json_object(data[:_HEADER_BYTES]))
    except (OSError, ValueError, RecursionError):
        return None
    entries = data[_HEADER_BYTES : len(data) - (len(data) - _HEADER_BYTES) % _ENTRY.size]
    found = replace(header, pieces=list(_ENTRY.iter_unpack(entries)))
    return found if found.size_bytes and found.validator is not None else None


def forget(folder: Path) -> None:
    """Remove the progress file of a folder, so that no other process resumes from this download."""
    (folder / "progress").unlink(missing_ok=True)


def copy_part(source: Path, target: Path, tick: Tick) -> None:
    """Copy the partial download in `source`; on a read error or a full disk nothing is left in `target`.

    The progress file is copied first, so that it lists no byte that was written after its copy.
    """
    try:
        shutil.copyfile(source / "progress", target / "progress")
        with (target / "download").open("xb") as new:
            for chunk in chunks_of(source / "download"):
                new.write(chunk)
                tick(new.tell(), None)
    except OSError:
        forget(target)


def chunks_of(path: Path, start: int = 0, end: int | None = None) -> Iterator[bytes]:
    """The bytes of a file from `start` to `end`, or to its own."""
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while chunk := file.read(_CHUNK_BYTES if end is None else min(_CHUNK_BYTES, end - file.tell())):
            yield chunk


class PartFile:
    """A file of one version (`validator`; None if the source has no version).

    Another version is a new PartFile with new files, so a late writer of the old one does no harm.
    """

    def __init__(self, folder: Path, begun: Progress) -> None:
        """Start with the pieces of `begun` of the download in `folder`; without any, discard it.

        Raises:
            StorageError: the folder cannot be written.
        """
        self.path, self.size_bytes = folder / "download", begun.size_bytes
        self.validator, self.total_bytes = begun.validator, begun.total_bytes
        self._recorded = [(offset, offset + length) for offset, length, _ in begun.pieces]
        self._lock = threading.Lock()
        header = json.dumps({"validator": begun.validator, "total_bytes": begun.total_bytes}).encode()
        entries = b"".join(_ENTRY.pack(*piece) for piece in begun.pieces)
        with self._writing(), ExitStack() as files:
            if not self._recorded:
                forget(folder)
                self.path.unlink(missing_ok=True)
            self._file = files.enter_context(self.path.open("r+b" if self._recorded else "xb", buffering=0))
            self._file.truncate(max((end for _, end in self._recorded), default=0))
            self._log = files.enter_context((folder / "progress.new").open("wb", buffering=0))
            self._log.write(header.ljust(_HEADER_BYTES - 1) + b"\n" + entries)
            (folder / "progress.new").rename(folder / "progress")
            self._files = files.pop_all()

    @classmethod
    def resume(cls, folder: Path, tick: Tick) -> PartFile | None:
        """Resume the partial download in `folder` with all pieces that match their checksum, if any do."""
        if (found := read_progress(folder)) is None:
            return None
        pieces: list[Piece] = []
        present_bytes = 0
        for offset, length, crc in found.pieces:
            actual = 0
            try:
                for chunk in chunks_of(folder / "download", offset, offset + length):
                    actual = zlib.crc32(chunk, actual)
                    tick(present_bytes, found.total_bytes)
            except (OSError, OverflowError):
                continue
            if length and actual == crc:
                pieces.append((offset, length, crc))
                present_bytes += length
        return cls(folder, replace(found, pieces=pieces)) if pieces else None

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except OSError as error:
                raise refused(self.path, "written", error) from error

    def write(self, offset: int, data: bytes) -> None:
        """Write bytes at an offset, from any thread; nothing after `close`.

        Raises:
            StorageError: the disk is full, or cannot be written.
        """
        rest = memoryview(data)
        with self._writing():
            while rest and not self._file.closed:  # a nearly full disk writes some bytes, then refuses
                count = os.pwrite(self._file.fileno(), rest, offset)
                offset, rest = offset + count, rest[count:]
                self.size_bytes += count

    def record(self, start: int, end: int, crc: int) -> None:
        """Record a piece that was written, for the next process; nothing after `close`."""
        with self._writing():
            if start < end and not self._log.closed:
                self._log.write(_ENTRY.pack(start, end - start, crc))
                self._recorded.append((start, end))
                # Starts to write it to the disk, so that the sync at the end has less to do.
                os.posix_fadvise(self._file.fileno(), start, end - start, os.POSIX_FADV_DONTNEED)

    def missing(self) -> list[tuple[int, int | None]]:
        """(start, end) of what is not recorded; the last end is None if the length is unknown."""
        found: list[tuple[int, int | None]] = []
        reached = 0
        for start, end in sorted(self._recorded):
            if start > reached:
                found.append((reached, start))
            reached = max(reached, end)
        return found if reached == self.total_bytes else [*found, (reached, self.total_bytes)]

    def close(self) -> None:
        """Write nothing more; the bytes stay. Waits for a write that has begun."""
        with self._lock:
            self._files.close()
