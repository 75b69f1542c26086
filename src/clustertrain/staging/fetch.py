"""Fetches one file from its source to the disk: hashed during the write, resumed after a cut or a kill.

The bytes are collected in a `Part` (partial_file.py). A source that serves any range of one version is read
by several streams in parallel (parallel_ranges.py), any other source by one stream from start to end.
"""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

from clustertrain.errors import DataError, JobError, StorageError
from clustertrain.staging.local_file import FileSource
from clustertrain.staging.parallel_ranges import SourceChanged, fetch_spans
from clustertrain.staging.partial_file import PIECE_BYTES, Part, Tick
from clustertrain.staging.retries import Retries
from clustertrain.staging.source import CHUNK_BYTES, CutShort, Source, Stream, masked, read_some
from clustertrain.storage.location import Location, local_path

_LOOK_EVERY_BYTES = 64 << 20
_KEPT_FREE_BYTES = 1 << 30


def open_source(location: Location) -> Source:
    """The source behind a URI.

    Raises:
        JobError: a scheme that is not supported, or credentials in the URI.
        DataError: an S3 URI without an object key.
    """
    uri = location.uri
    if location.is_s3:
        from clustertrain.staging.s3 import S3Source

        return S3Source.of(location)
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
        self.part.cut_to_size()
        self._tick(self.part.size_bytes, self.part.total_bytes)
        return in_one_go

    def _pause(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        self._tick(self.part.size_bytes, None)
        while (left := ends - time.monotonic()) > 0:
            time.sleep(min(left, 0.2))
            self._tick(self.part.size_bytes, None)

    def _transfer(self) -> None:
        """One try: request the first missing bytes, then the other ones."""
        start, end = self.part.gap()
        if self._source.supports_ranges:  # the answer for one piece contains the total length
            piece_end = (start // PIECE_BYTES + 1) * PIECE_BYTES
            end = piece_end if end is None else min(end, piece_end)
        stream = self._source.open(start, self.part.validator, end)
        with ExitStack() as opened:
            opened.callback(stream.body.close)
            if stream.offset not in (start, 0):
                self.begin(None, None)
                raise CutShort(f"requested bytes from {start} on, but the server started at {stream.offset}")
            known = (self.part.validator, self.part.total_bytes or stream.total_bytes)
            is_same = stream.offset == start and (stream.validator, stream.total_bytes) == known
            if not is_same and stream.offset:
                self.begin(None, None)
                raise CutShort(f"its size changed from {known[1]} to {stream.total_bytes} bytes")
            if not is_same or self.part.size_bytes == 0:
                self.begin(stream.validator, stream.total_bytes)
            elif self.part.total_bytes is None:
                self.part.total_bytes = stream.total_bytes
            _check_space(self.part, self._uri)
            if stream.splits and not self._in_order and self.part.missing_bytes > PIECE_BYTES:
                opened.pop_all()  # from here on the thread that reads the stream closes it
                self._split(stream)
            else:
                self._read_in_order(stream)

    def _split(self, stream: Stream) -> None:
        try:
            fetch_spans(self._source, self.part, stream, uri=self._uri, tick=self._tick)
        except SourceChanged as changed:
            self._in_order = changed.is_same
            raise CutShort(str(changed)) from changed

    def _read_in_order(self, stream: Stream) -> None:
        part, at, look_at = self.part, stream.offset, _LOOK_EVERY_BYTES
        ends = [end for end in (part.gap()[1], stream.end) if end is not None]
        end = min(ends, default=None)
        while data := read_some(stream.body, CHUNK_BYTES if end is None else min(CHUNK_BYTES, end - at)):
            part.write(at, data)
            at += len(data)
            self._tick(part.size_bytes, stream.total_bytes)
            if end is None and at >= look_at:
                look_at = at + _LOOK_EVERY_BYTES
                _check_rest(part, self._uri)
        if end is None:
            part.end_here()
        elif at < end:
            raise CutShort(f"{at} of {stream.total_bytes} bytes were received")
        if isinstance(self._source, FileSource) and self._source.validator() != stream.validator:
            self.begin(None, None)
            raise CutShort(f"{self._source.path} changed while it was copied")


def _check_space(part: Part, uri: str) -> None:
    """Check, before the first byte of a transfer, that the file fits on the disk."""
    if part.total_bytes is None:
        return
    free_bytes = shutil.disk_usage(part.path.parent).free
    if part.missing_bytes > free_bytes:
        raise StorageError(
            f"{masked(uri)} does not fit: {part.missing_bytes} bytes are missing, "
            f"{free_bytes} are free at {part.path.parent.parent}.\n"
            "Free space there, or store the data elsewhere."
        )


def _check_rest(part: Part, uri: str) -> None:
    """Check, during a transfer of unknown length, that it does not fill the disk."""
    free_bytes = shutil.disk_usage(part.path.parent).free
    if free_bytes < _KEPT_FREE_BYTES:
        raise StorageError(
            f"{masked(uri)} does not fit: its server sends no length, {part.size_bytes} bytes were received, "
            f"and {free_bytes} are free at {part.path.parent.parent}.\n"
            f"At least {_KEPT_FREE_BYTES} have to stay free. Free space there, or store the data elsewhere."
        )
