"""A source of bytes: it opens at any byte of a known version, and a transfer may be cut and tried again."""

from __future__ import annotations

import math
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from clustertrain.errors import DataError
from clustertrain.units import shortened

CHUNK_BYTES = 1 << 19  # of a block; small enough for the CPU's cache
BACKOFF_S = 1.0  # grows with the time for which there was no new byte
_LONGEST_BACKOFF_S = 20.0


class CutShort(Exception):
    """A transient error; the text describes it."""

    def __init__(self, message: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NotThatRange(CutShort):
    """The source has another version, or sends no ranges: the file has to be read anew."""


@dataclass(frozen=True)
class Stream:
    """Bytes of a source.

    Attributes:
        blocks: the bytes, each block as soon as it has arrived. Raises CutShort if the connection broke or
            timed out; a source that ends early may also only stop.
        total_bytes: the length of the whole file, if it was requested and the source knows it.
        validator: identifies the version of the bytes. It is None if the source has no versions,
            or gives no length.
        has_ranges: the source says that it serves any range of them. Otherwise a cut transfer restarts.
    """

    blocks: Iterator[bytes]
    close: Callable[[], None]
    total_bytes: int | None
    validator: str | None
    has_ranges: bool = True


class Source(ABC):
    """The source of a file.

    Attributes:
        retry_s: how long transient errors are retried without a new byte.
        timeout_s: how long a download may take in all.
    """

    retry_s: float = 60.0
    timeout_s: float = math.inf

    @abstractmethod
    def read_range(self, offset: int, end: int, validator: str | None) -> Stream:
        """A stream of the bytes from `offset` to `end` of the version `validator`; if that is None, of the
        whole file in its current version.

        Raises:
            NotThatRange: the source does not send that range of that version.
            CutShort: a transient error.
            DataError: a permanent error: the file does not exist or access is refused.
        """


class Retries:
    """The retries of one file. They end after `retry_s` of the source without a new byte from any stream.

    Retry libraries count the tries of one call.
    """

    def __init__(self, source: Source, uri: str) -> None:
        self._retry_s, self._uri = source.retry_s, uri
        self._most_bytes, self._since = -1, 0.0

    def pause_s(self, cut: CutShort, done_bytes: int) -> float:
        """The time to wait before the next try.

        Raises:
            DataError: the retries are used up.
        """
        now = time.monotonic()
        if done_bytes > self._most_bytes:
            self._most_bytes, self._since = done_bytes, now
        tried_s = now - self._since
        if tried_s >= self._retry_s:
            raise DataError(
                f"{masked(self._uri)} cannot be fetched: {cut}.\n"
                f"{self._retry_s:g} s of retries received nothing beyond byte {self._most_bytes}. "
                "Run again to continue from there."
            ) from cut
        # Jitter, so that many streams and nodes do not retry at the same time.
        pause_s = max(BACKOFF_S, tried_s) * random.uniform(0.5, 1.0)
        return min(max(pause_s, cut.retry_after_s), _LONGEST_BACKOFF_S, self._retry_s - tried_s)


def masked(uri: str) -> str:
    """A URI for messages and records: without user, password and query, each of which may be a secret, and on
    one line of printable characters."""
    if "://" not in uri:
        return uri
    try:
        parts = urlsplit(uri)
    except ValueError:  # such as http://[::1
        return f"{shortened(uri.partition('://')[0])}://…"
    host = "***@" + parts.netloc.rpartition("@")[2] if "@" in parts.netloc else parts.netloc
    shown = urlunsplit((parts.scheme, host, parts.path, "…" if parts.query else "", ""))
    return shown if shown.isprintable() else repr(shown)[1:-1]
