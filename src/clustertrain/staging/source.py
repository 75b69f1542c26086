"""The protocol of a source of bytes: it opens at any byte of a known version, and a transfer may be cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit, urlunsplit

from clustertrain.units import shortened

CHUNK_BYTES = 1 << 19  # of a block: the maximum loss of a stream at a kill; small enough for the CPU's cache


class CutShort(Exception):
    """A transient error; the text describes it."""

    def __init__(self, message: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class Stream:
    """The bytes of a source from `offset` up to `end` (None: up to the end of the source).

    Attributes:
        blocks: the bytes, each block as soon as it has arrived. Raises CutShort if the connection broke or
            timed out; a source that ends early may also only stop.
        validator: identifies the version of the bytes. It is None if the source has no versions; then a cut
            transfer restarts.
        splits: the source serves any range of this version, so that several streams may read it in parallel.
    """

    blocks: Iterator[bytes]
    close: Callable[[], None]
    offset: int
    end: int | None
    total_bytes: int | None
    validator: str | None
    splits: bool = False


class Source(Protocol):
    """The source of a file."""

    @property
    def retry_s(self) -> float | None:
        """How long transient errors are retried; None: a fixed number of tries without a new byte."""
        ...

    @property
    def supports_ranges(self) -> bool:
        """Whether ranges are known to be supported before the first answer."""
        ...

    def read_range(self, offset: int, end: int | None, validator: str | None) -> Stream:
        """A stream from `offset` on if the version is still `validator`, from 0 otherwise. `end` is the
        offset at which the caller will stop reading; the stream may end before or after it.

        Raises:
            CutShort: a transient error.
            DataError: a permanent error: the file does not exist or access is refused.
        """
        ...


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
