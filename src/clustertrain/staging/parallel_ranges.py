"""Several streams that fetch one version of a file in parallel; each takes the next free span.

A ThreadPoolExecutor is not used: Python joins its threads at exit, and one that waits for a server delays it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing

from clustertrain.staging.partial_file import PIECE_BYTES, Part, Tick
from clustertrain.staging.retries import Retries
from clustertrain.staging.source import CHUNK_BYTES, CutShort, Source, Stream, read_some

STREAMS = 8
SPAN_BYTES = 32 << 20  # of one request, at most; large, because every request has a fixed cost
_TICK_EVERY_S = 0.1
_LEAVE_AFTER_S = 1.0


class SourceChanged(Exception):
    """The server sent a range of another version, or (`is_same`) not the requested range."""

    def __init__(self, message: str, *, is_same: bool) -> None:
        super().__init__(message)
        self.is_same = is_same


def fetch_spans(source: Source, part: Part, first: Stream, *, uri: str, tick: Tick) -> None:
    """Fetch all missing bytes of `part`, whose length is known; `first` is a stream open at its first gap.

    Each stream retries its own transient errors. The calling thread only calls `tick`. An exception of `tick`
    or a permanent error ends all streams. A stream that waits for a server at that time is abandoned: it
    writes nothing more, and ends with its timeout.

    Raises:
        SourceChanged: restart the download, or (`is_same`) read from start to end.
    """
    each = -(-part.missing_bytes // STREAMS)
    spans = part.gaps(min(SPAN_BYTES, -(-each // PIECE_BYTES) * PIECE_BYTES))
    crew = _Crew(source, part, uri, deque(spans))
    streams = [first, *[None] * (min(STREAMS, len(spans)) - 1)]
    threads = [threading.Thread(target=crew.work, args=(stream,), daemon=True) for stream in streams]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive():
                tick(part.size_bytes, part.total_bytes)
                thread.join(_TICK_EVERY_S)
    finally:
        crew.is_over.set()
        ends = time.monotonic() + _LEAVE_AFTER_S
        for thread in threads:
            thread.join(max(0.0, ends - time.monotonic()))
    if crew.error is not None:
        raise crew.error


class _Crew:
    """The shared state of the streams: the remaining spans, and the first error, which ends all streams."""

    def __init__(self, source: Source, part: Part, uri: str, spans: deque[tuple[int, int]]) -> None:
        self._source = source
        self._part = part
        self._uri = uri
        self._spans = spans
        self.is_over = threading.Event()
        self.error: Exception | None = None

    def work(self, stream: Stream | None) -> None:
        """The function of one thread; the first thread starts with the open stream."""
        try:
            while not self.is_over.is_set():
                start, end = self._spans.popleft()
                self._fill(start, end, stream)
                stream = None
        except IndexError:
            return  # no span is left
        except Exception as error:  # noqa: BLE001  the waiting thread raises it
            self.error = self.error or error
            self.is_over.set()

    def _fill(self, at: int, end: int, stream: Stream | None) -> None:
        retries = Retries(self._source, self._uri, self._part.size_bytes)
        while at < end and not self.is_over.is_set():
            try:
                stream = stream or self._open(at, end)
                with closing(stream.body):
                    for reached in self._written(stream, at, end):
                        at = reached
            except CutShort as cut:
                self.is_over.wait(retries.pause_s(cut, self._part.size_bytes))
            stream = None

    def _open(self, at: int, end: int) -> Stream:
        part = self._part
        stream = self._source.open(at, part.validator, end)
        is_same = stream.validator == part.validator
        if stream.offset != at or not is_same:
            stream.body.close()
            what = "the server no longer sends ranges" if is_same else "it changed during the download"
            raise SourceChanged(what, is_same=is_same)
        return stream

    def _written(self, stream: Stream, at: int, end: int) -> Iterator[int]:
        """Reads and writes; yields the offset reached after each write."""
        end = min(end, stream.end or end)
        while at < end:
            data = read_some(stream.body, min(CHUNK_BYTES, end - at))
            if not data:
                raise CutShort(f"a range ended at byte {at}, before {end}")
            if self.is_over.is_set():
                return
            self._part.write(at, data)
            at += len(data)
            yield at
