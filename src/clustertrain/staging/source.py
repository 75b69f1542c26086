"""What a source of bytes is: something that opens at any byte that it can vouch for, and may be cut short."""

from __future__ import annotations

import http.client
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit, urlunsplit

CHUNK_BYTES = 1 << 19  # of one read: what a kill may cost each stream, and small enough for the CPU's cache


class CutShort(Exception):
    """A fault that may pass; the text says what happened."""

    def __init__(self, message: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Body(Protocol):
    """What can be read once, from the front."""

    def read1(self, size: int, /) -> bytes:
        """At most `size` bytes, and no wait for more than the first of them; empty at the end."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Stream:
    """The bytes of a source from `offset` up to `end` (None: as far as they come).

    `validator` is the same for as long as the source has the same bytes; None where it cannot say so, and
    then a cut transfer begins again. `splits`: it gives any range of exactly these bytes, so that several
    streams may bring them at once.
    """

    body: Body
    offset: int
    end: int | None
    total_bytes: int | None
    validator: str | None
    splits: bool = False


class Source(Protocol):
    """Where a file comes from."""

    @property
    def retry_s(self) -> float | None:
        """How long faults that may pass are met with another try; None: a few tries that bring nothing."""
        ...

    @property
    def gives_ranges(self) -> bool:
        """Whether that is known before the first answer."""
        ...

    def open(self, offset: int, validator: str | None, end: int | None = None) -> Stream:
        """From `offset` on when the bytes are those of `validator`, from 0 otherwise. `end` is where the
        caller will stop to read; the stream may end before or after it.

        Raises:
            CutShort: a fault that may pass.
            DataError: it is not there, or not for us; trying again will not help.
        """
        ...


def read_some(body: Body, most_bytes: int) -> bytes:
    """The next bytes; empty at the end.

    Raises:
        CutShort: the connection broke, or was silent for too long.
    """
    try:
        return body.read1(most_bytes)
    except (OSError, http.client.HTTPException) as error:
        raise CutShort(f"{type(error).__name__}: {error}") from error


def masked(uri: str) -> str:
    """A URI for messages and records: without user, password and query, any of which may be a secret."""
    if "://" not in uri:
        return uri
    parts = urlsplit(uri)
    host = "***@" + parts.netloc.rpartition("@")[2] if "@" in parts.netloc else parts.netloc
    return urlunsplit((parts.scheme, host, parts.path, "…" if parts.query else "", ""))
