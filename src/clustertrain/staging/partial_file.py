"""A partial download of one file, written in any order, with checksums from which another process can resume.

    download      the bytes, each at its final offset
    progress      4 KiB: validator and total size as JSON; then for each piece of about 8 MiB its offset and
                  length (u64) and its crc32 (u32), which are overwritten in place while it grows

There is no fsync: a process that resumes after a kill or a crash of the machine uses only the bytes that
match their crc32. Download libraries record which parts were received, without checksums.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import threading
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from clustertrain.record_file import json_object, typed
from clustertrain.regular_file import read_file
from clustertrain.storage.posix import refused

_CHUNK_BYTES = 1 << 20
_HEADER_BYTES = 4096
_PIECE_BYTES = 8 << 20
_WRITEBACK_BYTES = 32 << 20
_PIECE = struct.Struct("<QQI")

Tick = Callable[[int, int | None], None]
"""Called often with the bytes present and the total (None: unknown). An exception that it raises ends the
work."""


@dataclass(frozen=True)
class Header:
    """The version of the source, and its length if it gave one."""

    validator: str
    total_bytes: int | None


@dataclass(frozen=True)
class Progress:
    """The content of a progress file; `pieces` has (offset, length, crc32) of each piece."""

    header: Header
    pieces: list[tuple[int, int, int]]

    @property
    def size_bytes(self) -> int:
        return sum(length for _, length, _ in self.pieces)


def read_progress(folder: Path) -> Progress | None:
    """The content of the progress file in a folder, if there is something to resume from."""
    try:
        data = read_file(folder / "progress")
        header = typed(Header, json_object(data[:_HEADER_BYTES]))
    except (OSError, ValueError, RecursionError):
        return None
    entries = data[_HEADER_BYTES : len(data) - (len(data) - _HEADER_BYTES) % _PIECE.size]
    found = Progress(header, [piece for piece in _PIECE.iter_unpack(entries) if piece[1]])
    return found if found.size_bytes else None


def copy_part(source: Path, target: Path, tick: Tick) -> None:
    """Copy the partial download in `source`; on a read error or a full disk nothing is left in `target`.

    The progress file is copied first, so that it lists no byte that was written after its copy.
    """
    try:
        shutil.copyfile(source / "progress", target / "progress")
        with (source / "download").open("rb") as old, (target / "download").open("xb") as new:
            while chunk := old.read(_CHUNK_BYTES):
                new.write(chunk)
                tick(new.tell(), None)
    except OSError:
        (target / "progress").unlink(missing_ok=True)


class Part:
    """A file of one version (`validator`; None if the source has no version).

    Another version is a new Part with new files, so a late writer of the old one does no harm.
    """

    def __init__(
        self,
        folder: Path,
        validator: str | None = None,
        total_bytes: int | None = None,
        *,
        resumes: bool = False,
    ) -> None:
        """Start without bytes; discard an earlier partial download in `folder`, unless `resumes`.

        Raises:
            StorageError: the folder cannot be written.
        """
        self.path, self.validator, self.total_bytes = folder / "download", validator, total_bytes
        self._progress, self._new_progress = folder / "progress", folder / "progress.new"
        self._done: list[tuple[int, int]] = []  # (start, end) of what is present, in order, with gaps between
        self._pieces = 0
        self._growing: dict[int, tuple[int | None, int, int]] = {}  # by its end: number, offset, crc32
        self._hash, self._hashed_bytes = hashlib.sha256(), 0
        self._writing = threading.Lock()
        self._log: IO[bytes] | None = None
        try:
            if not resumes:
                self.delete_progress()
                self.path.unlink(missing_ok=True)
            with ExitStack() as opened:
                file = self.path.open("r+b" if resumes else "x+b", buffering=0)
                self._file = opened.enter_context(file)
                if validator is not None:
                    self._log = opened.enter_context(self._new_progress.open("wb", buffering=0))
                    header = json.dumps(asdict(Header(validator, total_bytes))).encode()
                    self._log.write(header.ljust(_HEADER_BYTES - 1) + b"\n")
                    if not resumes:
                        self._new_progress.replace(self._progress)
                opened.pop_all()
        except OSError as error:
            raise refused(self.path, "written", error) from error

    @classmethod
    def resume(cls, folder: Path, tick: Tick) -> Part | None:
        """Resume the partial download in `folder` with every piece that matches its checksum, if any does."""
        found = read_progress(folder)
        if found is None or not (folder / "download").is_file():
            return None
        part = cls(folder, found.header.validator, found.header.total_bytes, resumes=True)
        try:
            for offset, length, crc in found.pieces:
                if part._matches(offset, length, crc, tick):
                    part._record(None, offset, offset + length, crc)
            part._file.truncate(max((end for _, end in part._done), default=0))  # off what was not recorded
            part._new_progress.replace(part._progress)
        except OSError:
            part._done = []  # unreadable: restart with new files
        except BaseException:
            part.close()
            raise
        if part._done:
            return part
        part.close()
        return None

    def _matches(self, at: int, length: int, crc: int, tick: Tick) -> bool:
        end, found, present_bytes = at + length, 0, self.path.stat().st_size
        if end > min(present_bytes, present_bytes if self.total_bytes is None else self.total_bytes):
            return False
        while at < end and (data := self._read(at, end)):
            found, at = zlib.crc32(data, found), at + len(data)
            tick(self.size_bytes, self.total_bytes)
        return (at, found) == (end, crc)

    def _read(self, at: int, end: int) -> bytes:
        return os.pread(self._file.fileno(), min(_CHUNK_BYTES, end - at), at)

    def _record(self, number: int | None, start: int, end: int, crc: int) -> None:
        """Record a piece that is present; it is a new one if it has no number yet."""
        if number is None:
            number, self._pieces = self._pieces, self._pieces + 1
        if self._log is not None:
            at = _HEADER_BYTES + number * _PIECE.size
            os.pwrite(self._log.fileno(), _PIECE.pack(start, end - start, crc), at)
        if end - start < _PIECE_BYTES:
            self._growing[end] = number, start, crc
        done: list[tuple[int, int]] = []
        for low, high in sorted([*self._done, (start, end)]):
            if done and low <= done[-1][1]:
                done[-1] = (done[-1][0], max(high, done[-1][1]))
            else:
                done.append((low, high))
        self._done = done

    def write(self, offset: int, data: bytes) -> None:
        """Write bytes at their offset, from any thread. After `close` it does nothing.

        Raises:
            StorageError: the disk is full, or cannot be written.
        """
        number, start, crc = self._growing.pop(offset, (None, offset, 0))
        crc, rest, at = zlib.crc32(data, crc), memoryview(data), offset
        with self._writing:
            if self._file.closed:
                return
            try:
                while rest:  # a nearly full disk writes a part, then refuses
                    count = os.pwrite(self._file.fileno(), rest, at)
                    rest, at = rest[count:], at + count
                self._record(number, start, at, crc)
            except OSError as error:
                raise refused(self.path, "written", error) from error

    @property
    def size_bytes(self) -> int:
        """The number of bytes that are present."""
        return sum(end - start for start, end in self._done)

    def gaps(self) -> list[tuple[int, int | None]]:
        """(start, end) of what is missing; the last end is None if the length is unknown."""
        starts = [0, *(end for _, end in self._done)]
        ends = [*(start for start, _ in self._done), self.total_bytes]
        return [(start, end) for start, end in zip(starts, ends, strict=True) if start != end]

    @property
    def is_complete(self) -> bool:
        return not self.gaps()

    def hash_more(self) -> bool:
        """Hash the next bytes before the first gap; returns whether there were any.

        Raises:
            StorageError: the written bytes cannot be read.
        """
        end = self._done[0][1] if self._done and self._done[0][0] == 0 else 0
        if self._hashed_bytes == end:
            return False
        try:
            data = self._read(self._hashed_bytes, end)
            if not data:
                raise OSError(f"the file ends at byte {self._hashed_bytes}, before {end}")
        except OSError as error:
            raise refused(self.path, "read", error) from error
        self._hash.update(data)
        self._hashed_bytes += len(data)
        if self._hashed_bytes % _WRITEBACK_BYTES < len(data):
            # Starts to write them to the disk, so that the sync at the end has less to do.
            begin = max(0, self._hashed_bytes - _WRITEBACK_BYTES - _CHUNK_BYTES)
            place = begin, self._hashed_bytes - begin
            os.posix_fadvise(self._file.fileno(), *place, os.POSIX_FADV_DONTNEED)
        return True

    def sha256(self, tick: Tick) -> str:
        """The sha256 of the bytes before the first gap."""
        while self.hash_more():
            tick(self.size_bytes, self.total_bytes)
        return self._hash.hexdigest()

    def delete_progress(self) -> None:
        """Delete the progress file, so that no other process resumes from this download."""
        self._progress.unlink(missing_ok=True)

    def close(self) -> None:
        """Write nothing more; the bytes stay. Waits for a write that has begun."""
        with self._writing:
            self._file.close()
            if self._log is not None:
                self._log.close()
