"""What the sources of data have in common: transient errors, their retries, and what messages may show."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from clustertrain.errors import DataError
from clustertrain.node.units import shortened
from clustertrain.storage.posix import refused

CHUNK_BYTES = 1 << 19  # of a block; small enough for the CPU's cache
BACKOFF_S = 1.0  # grows with the time for which there was no new byte
WEB_RETRY_S = 60.0
_LONGEST_BACKOFF_S = 20.0


class CutShort(Exception):
    """A transient error; the text describes it."""


class Retries:
    """The retries of one file. They end after `retry_s` without a new byte.

    Retry libraries count the tries of one call.
    """

    def __init__(self, retry_s: float, uri: str) -> None:
        self._retry_s, self._uri = retry_s, uri
        self._most_bytes, self._since = -1, 0.0

    def pause_s(self, cut: CutShort, done_bytes: int) -> float:
        """Return the time to wait before the next try.

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
        return min(pause_s, _LONGEST_BACKOFF_S, self._retry_s - tried_s)


def masked(uri: str) -> str:
    """Return a URI for messages and records, on one line of printable characters.

    It is without user, password and query, each of which may be a secret.
    """
    if "://" not in uri:
        return uri
    try:
        parts = urlsplit(uri)
    except ValueError:  # such as http://[::1
        return f"{shortened(uri.partition('://')[0])}://…"
    host = "***@" + parts.netloc.rpartition("@")[2] if "@" in parts.netloc else parts.netloc
    shown = urlunsplit((parts.scheme, host, parts.path, "…" if parts.query else "", ""))
    return shown if shown.isprintable() else repr(shown)[1:-1]


def missing(path: Path, error: OSError) -> DataError:
    """Return the DataError for local data that cannot be opened."""
    if isinstance(error, FileNotFoundError):
        return DataError(
            f"{path} does not exist on {os.uname().nodename} (working directory: {Path.cwd()}).\n"
            "Correct the path, or put the data on a path that every node sees."
        )
    return DataError(str(refused(path, "read", error)))
