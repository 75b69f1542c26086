"""How long transient errors of a source are retried.

Retry libraries count the tries of one call; here new bytes of any stream reset the retries of all.
"""

from __future__ import annotations

import random
import time

from clustertrain.errors import DataError
from clustertrain.staging.source import CutShort, Source, masked

TRIES = 6  # in a row without a new byte
BACKOFF_S = 1.0  # doubles from try to try
_LONGEST_BACKOFF_S = 20.0
LOWEST_BYTES_PER_S = 512  # fewer new bytes than this are no progress: a server could send one byte per try


class Retries:
    """The retries of one stream; new bytes of any stream reset them.

    They end after `retry_s` of the source without new bytes, or after six tries if `retry_s` is None.
    """

    def __init__(self, source: Source, uri: str, done_bytes: int) -> None:
        self._source = source
        self._uri = uri
        self._most_bytes = self._first_bytes = done_bytes
        self._tries = 0
        self._since = self._cut_at = 0.0

    def pause_s(self, cut: CutShort, done_bytes: int) -> float:
        """The time to wait before the next try.

        Raises:
            DataError: the retries are used up.
        """
        now, new_bytes = time.monotonic(), done_bytes - self._most_bytes
        if self._tries == 0 or new_bytes > LOWEST_BYTES_PER_S * (now - self._cut_at):
            self._tries, self._since, self._first_bytes = 0, now, done_bytes
        self._most_bytes, self._cut_at = max(self._most_bytes, done_bytes), now
        self._tries += 1
        tried_s, retry_s = now - self._since, self._source.retry_s
        if tried_s >= retry_s if retry_s is not None else self._tries >= TRIES:
            tried = f"{TRIES} tries in a row" if retry_s is None else f"{retry_s:g} s of retries"
            received = "nothing"
            if self._most_bytes > self._first_bytes:
                received = f"less than {LOWEST_BYTES_PER_S} bytes per second, and nothing"
            raise DataError(
                f"{masked(self._uri)} cannot be fetched: {cut}.\n"
                f"{tried} received {received} beyond byte {self._most_bytes}. "
                "Run again to continue from there."
            ) from cut
        # Jitter, so that many streams and nodes do not retry at the same time.
        pause_s = BACKOFF_S * 2.0 ** min(self._tries - 1, 10) * random.uniform(0.5, 1.0)
        pause_s = min(max(pause_s, cut.retry_after_s), _LONGEST_BACKOFF_S)
        return pause_s if retry_s is None else min(pause_s, retry_s - tried_s)
