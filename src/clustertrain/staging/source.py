"""A source of bytes: it opens at any byte of a known version, and a transfer may be cut."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from clustertrain.units import shortened

CHUNK_BYTES = 1 << 19  # of a block: the maximum loss of a stream at a kill; small enough for the CPU's cache


class CutShort(Exception):
    """A transient error; the text describes it."""

    def __init__(self, message: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NotThatRange(CutShort):
    """The server sent another range, or has none, or has another version: the file has to be read anew."""


@dataclass(frozen=True)
class Stream:
    """The bytes of a source from `offset` up to `end` (None: up to the end of the source).

    Attributes:
        blocks: the bytes, each block as soon as it has arrived. Raises CutShort if the connection broke or
            timed out; a source that ends early may also only stop.
        validator: identifies the version of the bytes. It is None if the source has no versions; then a cut
            transfer restarts.
        has_ranges: the source serves any range of this file.
    """

    blocks: Iterator[bytes]
    close: Callable[[], None]
    offset: int
    end: int | None
    total_bytes: int | None
    validator: str | None
    has_ranges: bool = False


class Source(ABC):
    """The source of a file.

    Attributes:
        retry_s: how long transient errors are retried; None: a fixed number of tries without a new byte.
        timeout_s: how long a download may take in all.
        supports_ranges: whether ranges are known to be supported before the first answer.
    """

    retry_s: float | None = None
    timeout_s: float = math.inf
    supports_ranges: bool = False

    @abstractmethod
    def read_range(self, offset: int, end: int | None, validator: str | None) -> Stream:
        """A stream from `offset` on if the version is still `validator`, otherwise one of the whole file.
        `end` is where the caller will stop reading; the stream may end before or after it.

        Raises:
            NotThatRange: the server cannot continue at `offset`.
            CutShort: a transient error.
            DataError: a permanent error: the file does not exist or access is refused.
        """

    def opened(self, offset: int, end: int | None, validator: str | None) -> Stream:
        """The same; one of the whole file if the server cannot continue at `offset`."""
        try:
            return self.read_range(offset, end, validator)
        except NotThatRange:
            return self.read_range(0, None, None)


def is_strong(validator: str | None) -> bool:
    """Whether it is a strong ETag, which identifies the bytes; a date does not change within a second."""
    return validator is not None and validator.startswith('"')


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
