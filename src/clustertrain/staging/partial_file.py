"""A partial download of one file, and the record from which another process can resume.

    download      the bytes, each at its final offset
    progress      a `Progress` as JSON: the version of the source, and which bytes are missing

The record is written after each part, when its bytes are on the disk: so a kill, or a crash of the machine,
costs at most one part of each stream.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from clustertrain.record_file import encoded, json_object, typed
from clustertrain.regular_file import read_file

UNKNOWN = sys.maxsize  # the end of a file of unknown length
_CHUNK_BYTES = 1 << 20

Tick = Callable[[int, int | None], None]
"""Called often with the bytes present and the total (None: unknown). An exception that it raises ends the
work."""


@dataclass(frozen=True)
class Progress:
    """What is there of a file.

    Attributes:
        validator: the version of the source, or None if it has no versions that could be continued.
        total_bytes: its length, or None if it gave none.
        gaps: (start, end) of the bytes that are missing, in order; the last end may be UNKNOWN.
    """

    validator: str | None
    total_bytes: int | None
    gaps: list[tuple[int, int]]

    @classmethod
    def nothing(cls, validator: str | None = None, total_bytes: int | None = None) -> Progress:
        end = UNKNOWN if total_bytes is None else total_bytes
        return cls(validator, total_bytes, [(0, end)] if end else [])

    @property
    def size_bytes(self) -> int:
        end = UNKNOWN if self.total_bytes is None else self.total_bytes
        return end - sum(gap_end - start for start, gap_end in self.gaps)

    def plus(self, start: int, end: int) -> Progress:
        """The same with these bytes."""
        pieces = [
            piece
            for first, last in self.gaps
            for piece in ((first, min(last, start)), (max(first, end), last))
        ]
        return replace(self, gaps=[(first, last) for first, last in pieces if first < last])


def read_progress(folder: Path) -> Progress | None:
    """What another process can resume from in a folder, or None if there is nothing."""
    try:
        (folder / "download").stat()  # what cleans a disk of old files may have left only the other one
        return typed(Progress, json_object(read_file(folder / "progress")))
    except (OSError, ValueError):
        return None


def forget(folder: Path) -> None:
    """Remove the progress file of a folder, so that no other process resumes from this download."""
    (folder / "progress").unlink(missing_ok=True)


def copy_part(source: Path, target: Path, tick: Tick) -> None:
    """Copy the partial download in `source`; on a read error or a full disk there is no progress in `target`.

    The progress is read first, so that it names no byte that was written after its copy.
    """
    with suppress(OSError):
        progress = read_file(source / "progress")
        with (source / "download").open("rb") as old, (target / "download").open("xb") as new:
            while chunk := old.read(_CHUNK_BYTES):
                new.write(chunk)
                tick(new.tell(), None)
            new.flush()
            os.fsync(new.fileno())
        (target / "progress").write_bytes(progress)


class PartFile:
    """The file `download` of a folder, to which any thread writes. Without progress it is a new file."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        self.progress, self.path, self._record = progress, folder / "download", folder / "progress"
        self._lock = threading.Lock()
        if progress.total_bytes is not None and progress.size_bytes:
            self._file = self.path.open("r+b", buffering=0)
            self._file.truncate(progress.total_bytes)
        else:
            forget(folder)
            self.path.unlink(missing_ok=True)
            self._file = self.path.open("x+b", buffering=0)

    @property
    def is_open(self) -> bool:
        return not self._file.closed

    def write(self, offset: int, data: bytes) -> None:
        """Write bytes at an offset. After `close` it raises ValueError."""
        end, rest = offset + len(data), memoryview(data)
        with self._lock:
            while rest:  # a nearly full disk writes some bytes, then refuses
                rest = rest[os.pwrite(self._file.fileno(), rest, end - len(rest)) :]
            self.progress = self.progress.plus(offset, end)

    def read(self, offset: int, end: int) -> bytes:
        """Some bytes that were written there."""
        return os.pread(self._file.fileno(), min(_CHUNK_BYTES, end - offset), offset)

    def end_at(self, total_bytes: int) -> None:
        """Set the length of a file that had none."""
        self.progress = replace(self.progress, total_bytes=total_bytes, gaps=[])

    def save(self) -> None:
        """Record the progress for the next process, if the source has a version that could be continued."""
        if self.progress.validator is None:
            return
        with self._lock:
            os.fdatasync(self._file.fileno())
            with self._record.with_suffix(".new").open("wb") as new:
                new.write(encoded(self.progress))
                new.flush()
                os.fsync(new.fileno())
            self._record.with_suffix(".new").rename(self._record)

    def close(self) -> None:
        """Record what is there, and write nothing more; the bytes stay."""
        try:
            with suppress(OSError, ValueError):  # a full disk; a second call
                self.save()
        finally:
            with self._lock:
                self._file.close()
