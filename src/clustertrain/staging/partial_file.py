"""A partial download of one file, with checksums from which another process can resume.

    download      the bytes, each at its final offset
    progress      4 KiB: validator and total size as JSON; then for each part of 16 MiB, in their order, its
                  offset, the number of its first bytes that are present (u64), and their crc32 (u32)

A part is filled from its start. Its entry is overwritten in place while it grows. There is no fsync: a
process that resumes after a kill or a crash of the machine uses only the bytes that match their crc32.
Download libraries record which parts were received, without checksums.
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
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from clustertrain.record_file import json_object, typed
from clustertrain.regular_file import read_file
from clustertrain.storage.posix import refused

PART_BYTES = 16 << 20  # of one request, at most; large, because every request has a fixed cost
_CHUNK_BYTES = 1 << 20
_HEADER_BYTES = 4096
_ENTRY = struct.Struct("<QQI")

Tick = Callable[[int, int | None], None]
"""Called often with the bytes present and the total (None: unknown). An exception that it raises ends the
work."""


def part_end(offset: int) -> int:
    """The end of the part that contains the byte at an offset."""
    return offset - offset % PART_BYTES + PART_BYTES


@dataclass(frozen=True)
class Header:
    """The version of the source, if it has versions, and its length if it gave one."""

    validator: str | None
    total_bytes: int | None


@dataclass(frozen=True)
class Progress:
    """The content of a progress file; `parts` has (offset, length, crc32) of what is present of each part."""

    header: Header
    parts: list[tuple[int, int, int]]

    @property
    def size_bytes(self) -> int:
        return sum(length for _, length, _ in self.parts)


def read_progress(folder: Path) -> Progress | None:
    """The content of the progress file in a folder, if there is something to resume from."""
    try:
        data = read_file(folder / "progress")
        header = typed(Header, json_object(data[:_HEADER_BYTES]))
    except (OSError, ValueError, RecursionError):
        return None
    entries = data[_HEADER_BYTES : len(data) - (len(data) - _HEADER_BYTES) % _ENTRY.size]
    found = Progress(header, list(_ENTRY.iter_unpack(entries)))
    return found if found.size_bytes and header.validator is not None else None


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


class PartFile:
    """A file of one version (`validator`; None if the source has no version).

    Another version is a new PartFile with new files, so a late writer of the old one does no harm.
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
        self.size_bytes = 0
        self._progress = folder / "progress"
        self._present: dict[int, tuple[int, int]] = {}  # of a part by its number: length and crc32
        self._hash, self._hashed_bytes = hashlib.sha256(), 0
        self._writing = threading.Lock()
        try:
            if not resumes:
                self.delete_progress()
                self.path.unlink(missing_ok=True)
            mode = "r+b" if resumes else "x+b"
            with ExitStack() as files:
                self._file = files.enter_context(self.path.open(mode, buffering=0))
                self._log = files.enter_context(self._progress.open(mode, buffering=0))
                if not resumes:
                    header = json.dumps(asdict(Header(validator, total_bytes))).encode()
                    self._log.write(header.ljust(_HEADER_BYTES - 1) + b"\n")
                self._files = files.pop_all()
        except OSError as error:
            raise refused(self.path, "written", error) from error

    @classmethod
    def resume(cls, folder: Path, tick: Tick) -> PartFile | None:
        """Resume the partial download in `folder` with all bytes that match their checksum, if any do."""
        found = read_progress(folder)
        if found is None or not (folder / "download").is_file():
            return None
        resumed = cls(folder, found.header.validator, found.header.total_bytes, resumes=True)
        with ExitStack() as unusable, suppress(OSError):  # unreadable: restart with new files
            unusable.callback(resumed.close)
            for number, (offset, length, crc) in enumerate(found.parts):
                # Earlier releases recorded pieces of another size.
                is_part = offset == number * PART_BYTES and length <= PART_BYTES
                matches = is_part and resumed._crc32(offset, offset + length, tick) == crc
                resumed._record(number, length if matches else 0, crc if matches else 0)
            ends = [number * PART_BYTES + length for number, (length, _) in resumed._present.items()]
            resumed._file.truncate(max(ends))  # off what was not recorded
            if resumed.size_bytes:
                unusable.pop_all()
                return resumed
        return None

    def _crc32(self, at: int, end: int, tick: Tick) -> int | None:
        """The crc32 of these bytes, if they are all there."""
        crc = 0
        while at < end and (data := self._read(at, end)):
            crc, at = zlib.crc32(data, crc), at + len(data)
            tick(self.size_bytes, self.total_bytes)
        return crc if at == end else None

    def _read(self, at: int, end: int) -> bytes:
        return os.pread(self._file.fileno(), min(_CHUNK_BYTES, end - at), at)

    def _record(self, number: int, length: int, crc: int) -> None:
        entry = _ENTRY.pack(number * PART_BYTES, length, crc)
        os.pwrite(self._log.fileno(), entry, _HEADER_BYTES + number * _ENTRY.size)
        self.size_bytes += length - self._present.get(number, (0, 0))[0]
        self._present[number] = length, crc

    def write(self, offset: int, data: bytes) -> None:
        """Write bytes that follow those present of their part, from any thread; nothing after `close`.

        Raises:
            StorageError: the disk is full, or cannot be written.
        """
        rest = memoryview(data)
        with self._writing:
            try:
                while rest and not self._file.closed:
                    number, start = divmod(offset, PART_BYTES)
                    present_bytes, crc = self._present.get(number, (0, 0))
                    count = present_bytes - start  # a stream that was abandoned may have written them
                    if count <= 0:  # a nearly full disk writes some bytes, then refuses
                        count = os.pwrite(self._file.fileno(), rest[: PART_BYTES - start], offset)
                        self._record(number, start + count, zlib.crc32(rest[:count], crc))
                    offset, rest = offset + count, rest[count:]
            except OSError as error:
                raise refused(self.path, "written", error) from error

    @property
    def is_complete(self) -> bool:
        return self.size_bytes == self.total_bytes

    def gaps(self) -> list[tuple[int, int | None]]:
        """(start, end) of what is missing; the last end is None if the length is unknown."""
        found: list[tuple[int, int | None]] = []
        end = 0
        begun = ((number, length) for number, (length, _) in self._present.items() if length)
        for number, length in sorted(begun):
            start = number * PART_BYTES
            if start != end:
                found.append((end, start))
            end = start + length
        return found if end == self.total_bytes else [*found, (end, self.total_bytes)]

    def missing_parts(self) -> list[tuple[int, int]]:
        """(start, end) of what is missing of each part, if the length is known."""
        return [
            (at, min(part_end(at), end))
            for start, end in self.gaps()
            if end is not None
            for at in (start, *range(part_end(start), end, PART_BYTES))
        ]

    def hash_more(self) -> bool:
        """Hash the next bytes before the first gap; returns whether there were any.

        Raises:
            StorageError: the written bytes cannot be read.
        """
        number = self._hashed_bytes // PART_BYTES
        end = number * PART_BYTES + self._present.get(number, (0, 0))[0]
        if self._hashed_bytes >= end:
            return False
        try:
            data = self._read(self._hashed_bytes, end)
            if not data:
                raise OSError(f"the file ends at byte {self._hashed_bytes}, before {end}")
        except OSError as error:
            raise refused(self.path, "read", error) from error
        self._hash.update(data)
        self._hashed_bytes += len(data)
        if self._hashed_bytes % PART_BYTES == 0:
            # Starts to write them to the disk, so that the sync at the end has less to do.
            place = number * PART_BYTES, PART_BYTES
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
            self._files.close()
