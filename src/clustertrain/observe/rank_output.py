"""What the user's code prints on rank 0, from the log of the rank as it grows.

Rank 0 may run on another machine. If the storage is S3, its log then arrives in pieces of a few seconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress

from clustertrain.errors import StorageError
from clustertrain.observe.terminal_text import TerminalText
from clustertrain.run_files.folder.run_dir import Attempt
from clustertrain.run_files.streams.events import Record
from clustertrain.run_files.streams.history import host_of
from clustertrain.run_files.streams.rank_log import own_line, separated
from clustertrain.run_files.streams.streams import Tail

_MOST_BYTES = 4 << 20  # of one call, so that signals are not left waiting
_PIECES_EVERY_S = 5.0  # as they are sent; each look is a request to S3


class RankOutput:
    """The output of rank 0 in all starts of an attempt."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt.run.with_patience(0).attempt(attempt.n)
        self._tails: dict[str, Tail] = {}  # by the keys of the logs, one for each host that rank 0 was on
        self._key = ""  # of the newest one
        self._looked_at = float("-inf")
        self._printed = TerminalText()
        self._is_output = False

    def follow(self, records: Iterable[Record]) -> None:
        """Take the host of rank 0 from the events of the attempt."""
        for record in records:
            host = host_of(record, 0)
            if host is not None and (key := self._attempt.rank_log_key(host, 0)) != self._key:
                self._key, self._printed, self._is_output = key, TerminalText(), False

    def new(self) -> tuple[list[str], list[str]]:
        """Return the lines that were finished since the last call, and the line that may still change."""
        lines = list(self._of_output(self._printed.feed(self._new_bytes())))
        if not self._is_output:
            return lines, []
        return lines, [line for line in self._printed.open if own_line(line) is None]

    def rest(self) -> list[str]:
        """Return the lines at the end, when nothing more is written."""
        lines: list[str] = []
        while data := self._new_bytes(at_once=True):
            lines += self._of_output(self._printed.feed(data))
        return [*lines, *self._of_output(self._printed.open)]

    def _new_bytes(self, *, at_once: bool = False) -> bytes:
        if not self._key:
            return b""
        run = self._attempt.run
        is_elsewhere = run.is_spooled and not run.local_path(self._key).exists()
        if is_elsewhere and not at_once and time.monotonic() - self._looked_at < _PIECES_EVERY_S:
            return b""
        self._looked_at = time.monotonic()
        tail, data = self._tails.setdefault(self._key, Tail(run, self._key)), b""
        with suppress(StorageError, OSError):  # the log stays where it is, for `clustertrain logs`
            for block in tail.new():
                data += block
                if len(data) >= _MOST_BYTES:
                    break
        return data

    def _of_output(self, lines: Iterable[str]) -> Iterator[str]:
        for line in separated(lines):
            if (begins := own_line(line)) is not None:
                self._is_output = begins
            elif self._is_output:
                yield line
