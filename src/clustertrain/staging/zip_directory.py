"""The directory of a zip in parts: zipfile reads all of it into memory, and keeps an object for each member.

A part is a file for zipfile: the bytes of the zip up to its directory, then some entries of the directory,
then the records of its end (PKWARE's APPNOTE.TXT, 4.3.12 to 4.3.16).
"""

from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

PART_BYTES = 1 << 20
_LONGEST_COMMENT_BYTES = 65_535
_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END_64 = struct.Struct("<4sQ2H2L4Q")
_ENTRY = struct.Struct("<4s24x3H12x")  # signature; the lengths of name, extra field and comment


@dataclass(frozen=True)
class _Directory:
    """`at`: its place in the file; `offset`: the place that its end record gives, which is less if something
    precedes the zip."""

    at: int
    offset: int
    size_bytes: int


def directory_parts(file: IO[bytes]) -> Iterator[ZipPart]:
    """The zip `file` with a part of its directory each, in the order of the directory.

    Raises:
        zipfile.BadZipFile: it has no directory, or one that is cut.
    """
    directory = _found(file)
    at, ends = directory.at, directory.at + directory.size_bytes
    while at < ends:
        file.seek(at)
        entries = _whole_entries(file.read(min(ends - at, PART_BYTES + _ENTRY.size + 3 * 65_535)))
        yield ZipPart(file, directory, entries)
        at += len(entries)


def _whole_entries(data: bytes) -> bytes:
    """The entries at the beginning of `data`, up to PART_BYTES and the entry that crosses them."""
    end = 0
    while end < min(len(data), PART_BYTES):
        if len(data) - end < _ENTRY.size:
            raise zipfile.BadZipFile("its directory is cut")
        signature, *lengths = _ENTRY.unpack_from(data, end)
        if signature != b"PK\x01\x02":
            raise zipfile.BadZipFile("an entry of its directory has no signature")
        end += _ENTRY.size + sum(lengths)
    if end > len(data):
        raise zipfile.BadZipFile("its directory is cut")
    return data[:end]


def _found(file: IO[bytes]) -> _Directory:
    size_bytes = file.seek(0, os.SEEK_END)
    file.seek(max(0, size_bytes - _END.size - _LONGEST_COMMENT_BYTES))
    tail = file.read()
    # At its very end, if it has no comment: a member may contain a zip of its own.
    last = tail[-_END.size :]
    at = len(tail) - len(last) if last[:4] == b"PK\x05\x06" and last[-2:] == b"\0\0" else -1
    at = at if at >= 0 else tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) - at < _END.size:
        raise zipfile.BadZipFile("it has no directory: it was cut, or is no zip")
    *_, directory_bytes, offset, _ = _END.unpack_from(tail, at)
    ends = size_bytes - len(tail) + at
    if (large := _large(file, ends)) is not None:
        directory_bytes, offset = large
        ends -= _LOCATOR.size + _END_64.size
    if not 0 <= offset <= ends - directory_bytes:
        raise zipfile.BadZipFile("its directory is cut")
    return _Directory(ends - directory_bytes, offset, directory_bytes)


def _large(file: IO[bytes], end: int) -> tuple[int, int] | None:
    """(size, offset) of the directory from the records of a zip64, which precede its end record."""
    if end < _LOCATOR.size + _END_64.size:
        return None
    file.seek(end - _LOCATOR.size - _END_64.size)
    records = file.read(_LOCATOR.size + _END_64.size)
    if records[_END_64.size :][:4] != b"PK\x06\x07" or records[:4] != b"PK\x06\x06":
        return None
    *_, size_bytes, offset = _END_64.unpack_from(records)
    return size_bytes, offset


class ZipPart:
    """A zip for zipfile, with some entries of the directory of another one."""

    def __init__(self, file: IO[bytes], directory: _Directory, entries: bytes) -> None:
        self._file, self._begin = file, directory.at
        self._tail = entries + _end_records(directory, len(entries))
        self._at = 0

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at}.get(whence, self._begin + len(self._tail))
        if start + offset < 0:
            raise ValueError("an offset is before the start of the archive")
        self._at = start + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._begin + len(self._tail) - self._at)
        size = left if size < 0 else min(size, left)
        data = b""
        if self._at < self._begin:
            self._file.seek(self._at)
            data = self._file.read(min(size, self._begin - self._at))
            self._at += len(data)
        if len(data) < size and self._at >= self._begin:
            first = self._at - self._begin
            data += (more := self._tail[first : first + size - len(data)])
            self._at += len(more)
        return data


def _end_records(directory: _Directory, size_bytes: int) -> bytes:
    """The end of a zip64 whose directory has this size, and the place of `directory`."""
    most_16, most_32 = 0xFFFF, 0xFFFFFFFF
    large = _END_64.pack(
        b"PK\x06\x06", _END_64.size - 12, 45, 45, 0, 0, most_16, most_16, size_bytes, directory.offset
    )
    locator = _LOCATOR.pack(b"PK\x06\x07", 0, directory.offset + size_bytes, 1)
    return large + locator + _END.pack(b"PK\x05\x06", 0, 0, most_16, most_16, most_32, most_32, 0)
