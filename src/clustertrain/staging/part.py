"""The download of a file, which the next process goes on with after a kill.

download        the whole file
download.part   the first bytes of it
validator       the version of the file to which these belong; without it the next process begins anew
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from clustertrain.errors import StorageError

Tick = Callable[[int, int | None], None]
"""Called often with the bytes present and the total (None: unknown). An exception that it raises ends the
work."""


def can_go_on(folder: Path) -> bool:
    """Return whether the next process has a use for the download in a folder."""
    return any((folder / name).exists() for name in ("download", "validator"))


class Download:
    """The download in a folder, which one thread fills.

    Attributes:
        validator: the name that the server gives to the version of the bytes, or None if it has none, or if
            there are no bytes.
        received_bytes: that are there.
        total_bytes: the length of the file, or None as long as it is not known.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._name, self._lock, self._is_closed = name, threading.Lock(), False
        self.path, self.first, self._record = (
            folder / each for each in ("download", "download.part", "validator")
        )
        has_version = self._record.exists() and self.first.exists()
        self.validator = self._record.read_text() if has_version else None
        self.received_bytes = self.first.stat().st_size if has_version else 0
        self.total_bytes: int | None = None

    @property
    def is_complete(self) -> bool:
        return self.path.exists()

    def begin(self, validator: str | None, total_bytes: int | None) -> None:
        """Begin anew, in a new file: a holder of the lease that was stopped may have the old one open.

        Raises:
            StorageError: it does not fit on the disk.
        """
        with self._open():
            self._record.unlink(missing_ok=True)
            self.first.unlink(missing_ok=True)
            self.validator, self.received_bytes, self.total_bytes = validator, 0, total_bytes
            self._check_space(total_bytes or 0)
            if validator is not None:
                self._record.write_text(validator)

    def append(self, blocks: Iterable[bytes]) -> None:
        """Append bytes, and end the file if they are the last ones."""
        with self.first.open("ab") as file:
            for block in blocks:
                with self._open():
                    file.write(block)
                    file.flush()
                self.count(len(block))
        if self.total_bytes in (None, self.received_bytes):
            self.end()

    def count(self, more_bytes: int) -> None:
        """Count bytes that were received."""
        with self._open():
            self.received_bytes += more_bytes

    def end(self) -> None:
        """Name the first bytes the whole file."""
        with self.first.open("rb") as file:
            os.fsync(file.fileno())
        with self._open():
            self.first.rename(self.path)
            self._record.unlink(missing_ok=True)

    def close(self) -> None:
        """Let the thread write nothing more: the next holder may go on with the same file."""
        with self._lock:
            self._is_closed = True

    @contextmanager
    def _open(self) -> Iterator[None]:
        with self._lock:
            if self._is_closed:
                raise InterruptedError(f"{self._name} is not needed any more")
            yield

    def _check_space(self, needed_bytes: int) -> None:
        folder = self.path.parent.parent
        if (free_bytes := shutil.disk_usage(folder).free) < needed_bytes:
            raise StorageError(
                f"{self._name} does not fit: {needed_bytes} bytes, {free_bytes} are free at {folder}.\n"
                "Free space there, or store the data elsewhere."
            )
