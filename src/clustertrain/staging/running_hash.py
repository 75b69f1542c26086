"""The sha256 of a growing file: a thread hashes the bytes up to the first gap.

hashlib.file_digest reads a complete file: a second pass over the whole file, after the download.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading

_CHUNK_BYTES = 1 << 20
_WRITEBACK_BYTES = 32 << 20
_SYNC_FILE_RANGE_WRITE = 2


class Descriptor:
    """An open file that is closed when no reference to it remains.

    An abandoned stream may still have a reference, so its file descriptor must not be reused for another
    file.
    """

    def __init__(self, path: str | os.PathLike[str], flags: int) -> None:
        self.fd = os.open(path, flags | os.O_CLOEXEC, 0o600)

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)


class RunningHash:
    """Hashes `file` from its start up to the position given by `advance`; hashlib releases the GIL."""

    def __init__(self, file: Descriptor) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._hashed_bytes = self._goal_bytes = 0
        self._error: OSError | None = None
        self._ended = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def advance(self, to_bytes: int) -> None:
        """Declare the first `to_bytes` bytes final; the thread hashes them."""
        with self._changed:
            self._goal_bytes = to_bytes
            if self._thread is None and not self._ended:
                self._thread = threading.Thread(target=self._follow, name="sha256", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def caught_up(self, timeout_s: float) -> bool:
        """Wait until all final bytes are hashed, at most `timeout_s`. Returns whether they are.

        Raises:
            OSError: the written bytes cannot be read.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._error or self._hashed_bytes == self._goal_bytes, timeout_s)
            if self._error is not None:
                raise self._error
            return self._hashed_bytes == self._goal_bytes

    def hexdigest(self) -> str:
        """The sha256 of the bytes hashed so far; see `caught_up`."""
        return self._hash.hexdigest()

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _follow(self) -> None:
        buffer = bytearray(_CHUNK_BYTES)
        try:
            while (goal_bytes := self._next_goal()) is not None:
                while self._hashed_bytes < goal_bytes and not self._ended:
                    self._hash_some(memoryview(buffer)[: goal_bytes - self._hashed_bytes])
        except OSError as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _next_goal(self) -> int | None:
        """The next position to hash up to; None at the end."""
        with self._changed:
            self._changed.notify_all()  # `caught_up` may wait for the bytes that were just hashed
            self._changed.wait_for(lambda: self._ended or self._hashed_bytes < self._goal_bytes)
            return None if self._ended else self._goal_bytes

    def _hash_some(self, buffer: memoryview) -> None:
        count = os.preadv(self._file.fd, [buffer], self._hashed_bytes)
        if count == 0:
            raise OSError(f"the file ends at byte {self._hashed_bytes}, before {self._goal_bytes}")
        self._hash.update(buffer[:count])
        self._hashed_bytes += count
        if self._hashed_bytes % _WRITEBACK_BYTES < count:
            self._start_writeback()

    def _start_writeback(self) -> None:
        """Start the write-back of the hashed bytes, so that the sync at the end has less to write.

        It is only a hint; a file system may ignore it.
        """
        begin = max(0, self._hashed_bytes - _WRITEBACK_BYTES - _CHUNK_BYTES)
        length = ctypes.c_longlong(self._hashed_bytes - begin)
        libc = ctypes.CDLL(None)
        libc.sync_file_range(self._file.fd, ctypes.c_longlong(begin), length, _SYNC_FILE_RANGE_WRITE)
