"""A partial download of one file, written in any order, with checksums from which another process can resume.

    download      the bytes, each at its final offset
    progress      4 KiB: validator, total and piece size as JSON; then 8 bytes for each piece of 8 MiB:
                  the number of its bytes that are present (u32) and their crc32 (u32)

After every write the 8 bytes of its piece are overwritten in place. There is no fsync: a process that resumes
after a kill or a crash of the machine reads the progress file, and uses only the bytes that match their
crc32. Download libraries record which parts were received, without checksums.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import threading
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from clustertrain.regular_file import read_file
from clustertrain.staging.running_hash import Descriptor, RunningHash
from clustertrain.storage.posix import refused

PIECE_BYTES = 8 << 20
_CHUNK_BYTES = 1 << 20
_HEADER_BYTES = 4096
_ENTRY = struct.Struct("<II")
_LOOK_EVERY_S = 0.2

Tick = Callable[[int, int | None], None]
"""Called often with the bytes present and the total (None: unknown). An exception that it raises ends the
work."""


@dataclass(frozen=True)
class Header:
    """The first 4 KiB of a progress file.

    Attributes:
        validator: the version of the source.
        total_bytes: None if the source did not give its length.
    """

    validator: str
    total_bytes: int | None
    piece_bytes: int

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode().ljust(_HEADER_BYTES - 1) + b"\n"

    @classmethod
    def parse(cls, data: bytes) -> Header:
        """
        Raises:
            ValueError, KeyError, TypeError, RecursionError: the bytes are no header.
        """
        value = json.loads(data)
        header = cls(value["validator"], value["total_bytes"], value["piece_bytes"])
        if (type(header.validator), type(header.piece_bytes)) != (str, int):
            raise TypeError(f"a header has the types of {header}")
        if header.total_bytes is not None and (type(header.total_bytes) is not int or header.total_bytes < 0):
            raise ValueError(f"total_bytes is {header.total_bytes!r}")
        return header


@dataclass(frozen=True)
class SavedProgress:
    """The content of a progress file; `pieces` has (bytes, crc32) of each piece."""

    header: Header
    pieces: list[tuple[int, int]]

    @property
    def size_bytes(self) -> int:
        return sum(done for done, _ in self.pieces)


def read_progress(folder: Path) -> SavedProgress | None:
    """The content of the progress file in a folder; None if there is nothing to resume from."""
    try:
        data = read_file(folder / "progress")
        header = Header.parse(data[:_HEADER_BYTES])
        pieces = list(_ENTRY.iter_unpack(data[_HEADER_BYTES : len(data) - len(data) % _ENTRY.size]))
        found = SavedProgress(header, pieces)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
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

    def __init__(self, folder: Path, validator: str | None = None, total_bytes: int | None = None) -> None:
        """Start without bytes; discard an earlier partial download in `folder`.

        Raises:
            StorageError: the folder cannot be written.
        """
        self._open(folder, validator, total_bytes)
        try:
            self.delete_progress()
            self.path.unlink(missing_ok=True)
            self._file = Descriptor(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            self._write_header()
        except OSError as error:
            raise refused(self.path, "written", error) from error
        self._running_hash = RunningHash(self._file)

    def _open(self, folder: Path, validator: str | None, total_bytes: int | None) -> None:
        self.path = folder / "download"
        self.validator = validator
        self.total_bytes = total_bytes
        self.size_bytes = 0
        self._progress_path = folder / "progress"
        self._progress: Descriptor | None = None
        self._pieces: list[tuple[int, int]] = []
        self._first_open = 0  # the first piece that is not full
        self._lock = threading.Lock()

    def _write_header(self) -> None:
        if self.validator is None:
            return
        new = self._progress_path.with_suffix(".new")
        new.write_bytes(Header(self.validator, self.total_bytes, PIECE_BYTES).to_bytes())
        new.replace(self._progress_path)
        self._progress = Descriptor(self._progress_path, os.O_WRONLY)

    @classmethod
    def resume(cls, folder: Path, tick: Tick) -> Part | None:
        """Resume the partial download in `folder`, with every piece that matches its checksum; None if there
        is none, or no piece matches."""
        found = read_progress(folder)
        if found is None or found.header.piece_bytes != PIECE_BYTES:
            return None
        part = cls.__new__(cls)
        part._open(folder, found.header.validator, found.header.total_bytes)
        try:
            part._file = Descriptor(part.path, os.O_RDWR)
            part._progress = Descriptor(part._progress_path, os.O_WRONLY)
            for index, (done, crc) in enumerate(found.pieces):
                part._restore_piece(index, done if part._matches(index, done, crc, tick) else 0, crc)
        except OSError:
            return None  # unreadable: restart with new files
        part._running_hash = RunningHash(part._file)
        if part.size_bytes == 0:
            return None
        part._running_hash.advance(part.frontier)
        return part

    def _matches(self, index: int, done: int, crc: int, tick: Tick) -> bool:
        at, end, found = index * PIECE_BYTES, index * PIECE_BYTES + done, 0
        if end > self._end_of(index):
            return False
        while at < end:
            data = os.pread(self._file.fd, min(_CHUNK_BYTES, end - at), at)
            if not data:
                return False
            found, at = zlib.crc32(data, found), at + len(data)
            tick(self.size_bytes, self.total_bytes)
        return found == crc

    def _restore_piece(self, index: int, done: int, crc: int) -> None:
        self._pieces.append((done, crc if done else 0))
        self._write_entry(index)
        self.size_bytes += done
        self._move_frontier()

    def write(self, offset: int, data: bytes) -> None:
        """Write bytes at their offset. Several threads may call this, each in order and for different pieces.

        Raises:
            StorageError: the disk is full, or cannot be written.
        """
        view = memoryview(data)
        while view:
            index, within = divmod(offset, PIECE_BYTES)
            chunk = view[: PIECE_BYTES - within]
            try:
                self._write_piece(index, within, chunk)
            except OSError as error:
                raise refused(self.path, "written", error) from error
            offset, view = offset + len(chunk), view[len(chunk) :]

    def _write_piece(self, index: int, within: int, chunk: memoryview) -> None:
        file, rest, at = self._file, chunk, index * PIECE_BYTES + within
        while rest:  # a nearly full disk writes a part, then refuses
            count = os.pwrite(file.fd, rest, at)
            rest, at = rest[count:], at + count
        with self._lock:
            self._pieces.extend([(0, 0)] * (index + 1 - len(self._pieces)))
            done, crc = self._pieces[index]
        if done != within:
            raise ValueError(f"piece {index} has {done} bytes, but the write starts at {within}")
        crc = zlib.crc32(chunk, crc)
        with self._lock:
            self._pieces[index] = (within + len(chunk), crc)
            self.size_bytes += len(chunk)
            self._move_frontier()
            self._running_hash.advance(self.frontier)
        self._write_entry(index)

    def _write_entry(self, index: int) -> None:
        if self._progress is not None:
            at = _HEADER_BYTES + index * _ENTRY.size
            os.pwrite(self._progress.fd, _ENTRY.pack(*self._pieces[index]), at)

    def _end_of(self, index: int) -> int:
        end = (index + 1) * PIECE_BYTES
        return end if self.total_bytes is None else min(end, self.total_bytes)

    def _done(self, index: int) -> int:
        return self._pieces[index][0] if index < len(self._pieces) else 0

    def _move_frontier(self) -> None:
        while (done := self._done(self._first_open)) and (
            self._first_open * PIECE_BYTES + done == self._end_of(self._first_open)
        ):
            self._first_open += 1

    @property
    def frontier(self) -> int:
        """The number of bytes from the start up to the first gap."""
        at = self._first_open * PIECE_BYTES + self._done(self._first_open)
        return at if self.total_bytes is None else min(at, self.total_bytes)

    @property
    def is_complete(self) -> bool:
        return self.total_bytes is not None and self.size_bytes == self.total_bytes

    @property
    def missing_bytes(self) -> int:
        """The number of missing bytes of a file of known length."""
        return (self.total_bytes or 0) - self.size_bytes

    def gap(self) -> tuple[int, int | None]:
        """(start, end) of the first gap; end is None if the gap extends to the end of the file."""
        start = self.frontier
        for index in range(start // PIECE_BYTES + 1, len(self._pieces)):
            if self._done(index):
                return start, index * PIECE_BYTES
        return start, None

    def gaps(self, most_bytes: int) -> list[tuple[int, int]]:
        """All gaps of a file of known length, in spans of at most `most_bytes`. Each span starts at the first
        missing byte of a piece and ends at the end of a piece."""
        if self.total_bytes is None:
            raise ValueError("the gaps of a file of unknown length are unknown")
        spans: list[tuple[int, int]] = []
        for index in range(self._first_open, -(-self.total_bytes // PIECE_BYTES)):
            start, end = index * PIECE_BYTES + self._done(index), self._end_of(index)
            if start == end:
                continue
            if spans and spans[-1][1] == start and end - spans[-1][0] <= most_bytes:
                spans[-1] = (spans[-1][0], end)
            else:
                spans.append((start, end))
        return spans

    def end_here(self) -> None:
        """The source has ended: its length is the number of received bytes."""
        self.total_bytes = self.size_bytes

    def cut_to_size(self) -> None:
        """Truncate the file at its end: a write that is not in the progress file may have extended it.

        Raises:
            StorageError: the file cannot be truncated.
        """
        try:
            os.ftruncate(self._file.fd, self.size_bytes)
        except OSError as error:
            raise refused(self.path, "written", error) from error

    def sha256(self, tick: Tick) -> str:
        """The sha256 of the bytes up to the first gap; waits until all of them are hashed."""
        try:
            while not self._running_hash.caught_up(_LOOK_EVERY_S):
                tick(self.size_bytes, self.total_bytes)
        except OSError as error:
            raise refused(self.path, "read", error) from error
        return self._running_hash.hexdigest()

    def delete_progress(self) -> None:
        """Delete the progress file, so that no other process resumes from this download."""
        self._progress_path.unlink(missing_ok=True)

    def close(self) -> None:
        """End the hashing; the bytes stay."""
        self._running_hash.end()

    def __enter__(self) -> Part:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
