"""The protocol of a source of bytes: it opens at any byte of a known version, and a transfer may be cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit, urlunsplit

from clustertrain.units import shortened

CHUNK_BYTES = 1 << 19  # of one read: the maximum loss of a stream at a kill; small enough for the CPU's cache


class CutShort(Exception):
    """A transient error; the text describes it."""

    def __init__(self, message: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Body(Protocol):
    """A body that can be read once, from start to end."""

    def read1(self, size: int, /) -> bytes:
        """At most `size` bytes; waits only for the first one. Empty at the end."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Stream:
    """The bytes of a source from `offset` up to `end` (None: up to the end of the source).

    `validator` identifies the version of the bytes. It is None if the source has no versions; then a cut
    transfer restarts. `splits`: the source serves any range of this version, so that several streams may read
    it in parallel.
    """

    body: Body
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

    def open(self, offset: int, validator: str | None, end: int | None = None) -> Stream:
        """A stream from `offset` on if the version is still `validator`, from 0 otherwise. `end` is the
        offset at which the caller will stop reading; the stream may end before or after it.

        Raises:
            CutShort: a transient error.
            DataError: a permanent error: the file does not exist or access is refused.
        """
        ...


def read_some(body: Body, most_bytes: int) -> bytes:
    """The next bytes; empty at the end.

    Raises:
        CutShort: the connection broke or timed out.
    """
    try:
        return body.read1(most_bytes)
    except OSError as error:
        raise CutShort(f"{type(error).__name__}: {error}") from error


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
