"""Fetches one file from its source to the disk: hashed during the write, resumed after a cut or a kill.

The bytes are collected in a `Part` (partial_file.py). A source that serves any range of one version is read
by several streams in parallel, any other source by one stream from start to end. The calling thread hashes
what has no gaps.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

from clustertrain.errors import DataError, JobError, StorageError
from clustertrain.staging.local_file import FileSource
from clustertrain.staging.partial_file import Part, Tick
from clustertrain.staging.retries import Retries
from clustertrain.staging.source import CutShort, Source, Stream, masked
from clustertrain.storage.location import Location, local_path

STREAMS = 8
PART_BYTES = 16 << 20  # of one request, at most; large, because every request has a fixed cost
_TICK_EVERY_S = 0.01  # also how long the hashing pauses at a gap
_LEAVE_AFTER_S = 1.0
_KEPT_FREE_BYTES = 1 << 30


class SourceChanged(CutShort):
    """A server that sent ranges sent one of another version, or another range."""


def open_source(location: Location) -> Source:
    """The source behind a URI.

    Raises:
        JobError: a scheme that is not supported, or credentials in the URI.
        DataError: an S3 URI without an object key.
    """
    uri = location.uri
    if location.is_s3:
        from clustertrain.staging.s3 import S3Source

        return S3Source(location)
    if not location.is_http:
        return FileSource(local_path(uri, what="data"))
    if "@" in urlsplit(uri).netloc:
        raise JobError(
            f"{masked(uri)} contains credentials.\nRemove them: a URI ends up in logs and records."
        )
    from clustertrain.staging.http import HttpSource  # urllib3 takes time to import

    return HttpSource(uri, location.timeout_s)


def fetch(source: Source, folder: Path, *, uri: str, sha256: str | None, tick: Tick) -> Part:
    """Fetch a whole source into `folder`, and resume a partial download there.

    After a cut the transfer is resumed if the source can prove that its bytes are still the same, and
    restarted otherwise. It fails after `retry_s` of the source without a new byte, or, if `retry_s` is None,
    after six tries in a row without a new byte.

    Raises:
        DataError: it cannot be fetched, or has another checksum; in the latter case nothing of it is kept.
        StorageError: it does not fit on the disk, or cannot be written.
    """
    fetching = _Fetching(source, folder, uri, tick)
    try:
        in_one_go = fetching.complete()
        if sha256 is not None and fetching.part.sha256(tick) != sha256 and not in_one_go:
            fetching.begin(None, None)  # the resumed bytes may be from two different files
            fetching.complete()
        received = fetching.part.sha256(tick)
    finally:
        fetching.part.close()
    if sha256 is not None and received != sha256:
        fetching.part.delete_progress()
        raise DataError(
            f"{masked(uri)} does not have the checksum in the job file "
            f"({fetching.part.size_bytes} bytes were received).\n"
            f"expected sha256 {sha256}\n"
            f"received sha256 {received}; correct the job, or find out who changed the file."
        )
    return fetching.part


class _Fetching:
    """The transfer of one file. `part` is replaced if the source has another version."""

    def __init__(self, source: Source, folder: Path, uri: str, tick: Tick) -> None:
        self._source = source
        self._folder = folder
        self._uri = uri
        self._tick = tick
        self._in_order = False
        self.part = Part.resume(folder, tick) or Part(folder)

    def begin(self, validator: str | None, total_bytes: int | None) -> None:
        self.part.close()
        self.part = Part(self._folder, validator, total_bytes)

    def complete(self) -> bool:
        """Transfer until the file is complete. True if a single transfer fetched all of it."""
        in_one_go = self.part.size_bytes == 0
        retries = Retries(self._source, self._uri, self.part.size_bytes)
        while not self.part.is_complete:
            before_bytes = self.part.size_bytes
            try:
                self._transfer()
                if self.part.size_bytes <= before_bytes and not self.part.is_complete:
                    raise CutShort("no new byte was received")
            except CutShort as cut:
                in_one_go = False
                self._pause(retries.pause_s(cut, self.part.size_bytes))
        self._tick(self.part.size_bytes, self.part.total_bytes)
        return in_one_go

    def _pause(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        self._tick(self.part.size_bytes, None)
        while (left := ends - time.monotonic()) > 0:
            time.sleep(min(left, 0.2))
            self._tick(self.part.size_bytes, None)

    def _transfer(self) -> None:
        """One try: a stream from the first missing byte on; if others may join it, all that is missing."""
        start, end = self.part.gaps()[0]
        end = None if end == self.part.total_bytes else end
        if self._source.supports_ranges:  # the answer for one part contains the total length
            end = _least(start + PART_BYTES, end)
        stream = self._source.read_range(start, end, self.part.validator)
        try:
            self._use_version_of(stream, start)
            self._check_space()
        except BaseException:
            stream.close()
            raise
        gaps = self.part.gaps()
        missing_bytes = (self.part.total_bytes or 0) - self.part.size_bytes
        if stream.splits and not self._in_order and missing_bytes > PART_BYTES:
            self._fetch_in_parallel(stream)
            return
        for _ in self._written(stream.offset, _least(gaps[0][1] if gaps else None, stream.end), stream):
            self.part.hash_more()
            self._tick(self.part.size_bytes, self.part.total_bytes)

    def _use_version_of(self, stream: Stream, start: int) -> None:
        """Begin again if a stream is not what was requested, or of another version."""
        part, now = self.part, (stream.validator, stream.total_bytes)
        is_same = now == (part.validator, part.total_bytes or stream.total_bytes)
        if part.size_bytes and stream.offset == start and is_same:
            part.total_bytes = stream.total_bytes
        elif stream.offset == 0:
            self.begin(*now)
        else:
            self.begin(None, None)
            raise CutShort(
                f"byte {start} of {part.total_bytes} was requested, but the server began at byte "
                f"{stream.offset} of {stream.total_bytes}"
            )

    def _spans(self) -> Iterator[tuple[int, int]]:
        for start, gap_end in self.part.gaps():
            end = gap_end or start
            for at in range(start, end, PART_BYTES):
                yield at, min(at + PART_BYTES, end)

    def _fetch_in_parallel(self, first: Stream) -> None:
        """Fetch what is missing of a file of known length in several streams, each with its own retries.
        `first` is open at the first missing byte.

        The first permanent error, or an exception of `tick`, ends all of them. A stream that waits for a
        server at that time is abandoned: it writes nothing more, and ends with its timeout. (A
        ThreadPoolExecutor would wait for it at the exit of Python.)
        """
        spans = deque(self._spans())
        is_over, errors = threading.Event(), list[Exception]()

        def work(stream: Stream | None) -> None:
            retries = Retries(self._source, self._uri, self.part.size_bytes)
            try:
                while not is_over.is_set():
                    at, end = spans.popleft()
                    try:
                        for reached in self._written(at, end, stream):
                            at = reached
                            if is_over.is_set():
                                return
                    except SourceChanged:
                        raise
                    except CutShort as cut:
                        spans.appendleft((at, end))
                        is_over.wait(retries.pause_s(cut, self.part.size_bytes))
                    stream = None
            except IndexError:
                return  # no span is left
            except Exception as error:  # noqa: BLE001  the waiting thread raises it
                errors.append(error)
                is_over.set()

        streams = [first, *[None] * (min(STREAMS, len(spans)) - 1)]
        threads = [threading.Thread(target=work, args=(stream,), daemon=True) for stream in streams]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive() and not errors:
                    self._tick(self.part.size_bytes, self.part.total_bytes)
                    if not self.part.hash_more():
                        thread.join(_TICK_EVERY_S)
        finally:
            is_over.set()
            ends = time.monotonic() + _LEAVE_AFTER_S
            for thread in threads:
                thread.join(max(0.0, ends - time.monotonic()))
        if errors:
            raise errors[0]

    def _written(self, at: int, end: int | None, stream: Stream | None) -> Iterator[int]:
        """Reads and writes up to `end`; yields the offset reached after each write. `stream` is open at `at`,
        or None."""
        with closing(stream or self._opened(at, end)) as opened:
            for block in opened.blocks if at != end else ():
                data = block if end is None else block[: end - at]
                self.part.write(at, data)
                at += len(data)
                yield at
                if at == end:
                    return
                if end is None:
                    self._check_space()
        if end is None:
            self.part.total_bytes = at
        elif at < end:
            raise CutShort(f"{at} of {self.part.total_bytes} bytes were received")

    def _opened(self, at: int, end: int | None) -> Stream:
        stream = self._source.read_range(at, end, self.part.validator)
        if stream.offset != at or stream.validator != self.part.validator:
            stream.close()
            self._in_order = stream.validator == self.part.validator
            what = "the server no longer sends ranges" if self._in_order else "it changed during the download"
            raise SourceChanged(what)
        return stream

    def _check_space(self) -> None:
        """Check that the file fits on the disk: before a transfer, and during one of unknown length.

        Raises:
            StorageError: it does not fit.
        """
        part, folder = self.part, self._folder.parent
        free_bytes, missing_bytes = shutil.disk_usage(folder).free, (part.total_bytes or 0) - part.size_bytes
        if part.total_bytes is not None and missing_bytes > free_bytes:
            raise StorageError(
                f"{masked(self._uri)} does not fit: {missing_bytes} bytes are missing, "
                f"{free_bytes} are free at {folder}.\n"
                "Free space there, or store the data elsewhere."
            )
        if part.total_bytes is None and free_bytes < _KEPT_FREE_BYTES:
            raise StorageError(
                f"{masked(self._uri)} does not fit: its server sends no length, {part.size_bytes} bytes were "
                f"received, and {free_bytes} are free at {folder}.\n"
                f"At least {_KEPT_FREE_BYTES} have to stay free. "
                "Free space there, or store the data elsewhere."
            )


def _least(*ends: int | None) -> int | None:
    return min((end for end in ends if end is not None), default=None)
