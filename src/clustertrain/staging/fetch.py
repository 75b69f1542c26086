"""Fetches one file from its source to the disk, resumes after a cut or a kill, and computes its sha256.

The bytes are collected in a `PartFile` (partial_file.py). A source that serves any range of one version is
read by several streams in parallel, any other source by one stream from start to end. The calling thread
hashes the parts that have arrived.
"""

from __future__ import annotations

import hashlib
import shutil
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from clustertrain.errors import DataError, JobError, StorageError
from clustertrain.staging.local_file import FileSource
from clustertrain.staging.partial_file import PartFile, Progress, Tick, chunks_of, forget
from clustertrain.staging.retries import Retries
from clustertrain.staging.source import CutShort, NotThatRange, Source, Stream, is_strong, masked
from clustertrain.storage.location import Location, local_path
from clustertrain.units import duration_text
from clustertrain.waiting import wait_until

PART_BYTES = 16 << 20  # of one request, at most; large, because every request has a fixed cost
STREAMS = 8
_TICK_EVERY_S = 0.01
_LEAVE_AFTER_S = 1.0
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

        return S3Source(location)
    if not location.is_http:
        return FileSource(local_path(uri, what="data"))
    if "@" in urlsplit(uri).netloc:
        raise JobError(
            f"{masked(uri)} contains credentials.\nRemove them: a URI ends up in logs and records."
        )
    from clustertrain.staging.http import HttpSource  # urllib3 takes time to import

    return HttpSource(uri, location.timeout_s)


@dataclass(frozen=True)
class Fetched:
    """A file that was fetched completely."""

    path: Path
    size_bytes: int
    sha256: str


def fetch(
    source: Source,
    folder: Path,
    *,
    uri: str,
    sha256: str | None,
    tick: Tick,
    on_cut: Callable[[CutShort], None] = lambda cut: None,
) -> Fetched:
    """Fetch a whole source into `folder`, and resume a partial download there.

    `on_cut` is called with the reason before each pause, after which all that is missing is tried again.

    After a cut the transfer is resumed if the source can prove that its bytes are still the same, and
    restarted otherwise. It fails after `retry_s` of the source without a new byte, or, if `retry_s` is None,
    after six tries in a row without a new byte; and after its `timeout_s`.

    Raises:
        DataError: it cannot be fetched, or has another checksum; in the latter case nothing of it is kept.
        StorageError: it does not fit on the disk, or cannot be written.
    """
    download = _Download(source, folder, uri, tick, on_cut)
    try:
        fetched = download.complete()
        if sha256 not in (None, fetched.sha256) and download.was_cut:
            download.begin(None, None)  # the resumed bytes may be from two different files
            fetched = download.complete()
    finally:
        download.file.close()
    if sha256 not in (None, fetched.sha256):
        forget(folder)
        raise DataError(
            f"{masked(uri)} does not have the checksum in the job file "
            f"({fetched.size_bytes} bytes were received).\n"
            f"expected sha256 {sha256}\n"
            f"received sha256 {fetched.sha256}; correct the job, or find out who changed the file."
        )
    return fetched


class _Download:
    """The transfer of one file. `file` is replaced if the source has another version."""

    def __init__(
        self, source: Source, folder: Path, uri: str, tick: Tick, on_cut: Callable[[CutShort], None]
    ) -> None:
        self._source, self._folder, self._uri, self._tick, self._on_cut = source, folder, uri, tick, on_cut
        self._cut = ""
        self._ends_at = time.monotonic() + source.timeout_s
        self._in_order = False
        self._sha256, self._hashed_bytes = hashlib.sha256(), 0
        self.file = PartFile.resume(folder, tick) or PartFile(folder, Progress(None, None))
        self.was_cut = self.file.size_bytes > 0

    def begin(self, validator: str | None, total_bytes: int | None) -> None:
        self.file.close()
        self._sha256, self._hashed_bytes = hashlib.sha256(), 0
        self.file = PartFile(self._folder, Progress(validator, total_bytes))

    def complete(self) -> Fetched:
        """Transfer until the file is complete."""
        retries = Retries(self._source, self._uri, self.file.size_bytes)
        while missing := self.file.missing():
            before_bytes = self.file.size_bytes
            try:
                self._transfer(*missing[0])
                if self.file.size_bytes <= before_bytes and self.file.missing():
                    raise CutShort("no new byte was received")
            except CutShort as cut:
                self.was_cut, self._cut = True, f" The last try: {cut}."
                pause_s = retries.pause_s(cut, self.file.size_bytes)
                self._on_cut(cut)
                wait_until(self._report, pause_s, 0.2)
        self._hash_more()
        return Fetched(self.file.path, self._hashed_bytes, self._sha256.hexdigest())

    def _hash_more(self) -> None:
        """Hash the recorded bytes that have no gap before them, and report."""
        missing = self.file.missing()
        for chunk in chunks_of(self.file.path, self._hashed_bytes, missing[0][0] if missing else None):
            self._sha256.update(chunk)
            self._hashed_bytes += len(chunk)
            self._report()
        self._report()

    def _report(self) -> None:
        """
        Raises:
            DataError: the time of the download is over.
        """
        if time.monotonic() >= self._ends_at:
            raise DataError(
                f"{masked(self._uri)} was not complete after {duration_text(self._source.timeout_s)}, "
                f"the limit `timeout` of this data set (data.*.timeout).{self._cut}\n"
                "Run again to continue from there, or raise the limit."
            )
        self._tick(self.file.size_bytes, self.file.total_bytes)

    def _transfer(self, start: int, end: int | None) -> None:
        """One try: a stream from the first missing byte on; if others may join it, all that is missing."""
        if self._source.supports_ranges:  # the answer contains the total length
            end = min(start + PART_BYTES, end or start + PART_BYTES)
        elif end == self.file.total_bytes:
            end = None
        stream = self._source.opened(start, end, self.file.validator)
        try:
            self._use_version_of(stream, start)
            self._check_space()
        except BaseException:
            stream.close()
            raise
        parts = [
            (at, min(at + PART_BYTES, end))
            for start, end in self.file.missing()
            if end is not None
            for at in range(start, end, PART_BYTES)
        ]
        # Each stream has to prove that it is of the same version.
        if len(parts) > 1 and stream.has_ranges and is_strong(stream.validator) and not self._in_order:
            self._fetch_in_parallel(stream, parts)
        else:
            for _ in self._received(self.file, stream, stream.offset, stream.end):
                self._hash_more()

    def _use_version_of(self, stream: Stream, start: int) -> None:
        """Begin again if a stream is of another version, or of the whole file."""
        file, now = self.file, (stream.validator, stream.total_bytes)
        is_same = now == (file.validator, file.total_bytes or stream.total_bytes)
        if file.size_bytes and stream.offset == start and is_same:
            file.total_bytes = stream.total_bytes
        elif stream.offset == 0:
            self.begin(*now)
        else:
            self.begin(None, None)
            raise CutShort(f"its length is {stream.total_bytes} bytes, and was {file.total_bytes} before")

    def _fetch_in_parallel(self, first: Stream, parts: list[tuple[int, int]]) -> None:
        """Fetch these parts in several streams, each with its own retries. `first` is open at the first one.

        The first permanent error, or an exception of `tick`, ends all of them. A stream that waits for a
        server at that time is abandoned: it writes nothing to a file of another version, and ends with its
        timeout. (A ThreadPoolExecutor would wait for it at the exit of Python.)
        """
        file, is_over, errors = self.file, threading.Event(), list[Exception]()
        # Whichever thread is the first to take a part takes the first one, with its open stream.
        todo = iter([(first, parts[0]), *[(None, part) for part in parts[1:]]])

        def work() -> None:
            retries = Retries(self._source, self._uri, file.size_bytes)
            try:
                for begun, (start, end) in todo:
                    stream, at = begun, start
                    while at < end and not is_over.is_set():
                        try:
                            stream = stream or self._opened(file, at, end)
                            for reached in self._received(file, stream, at, end):
                                at = reached
                                if is_over.is_set():
                                    return
                        except NotThatRange:
                            raise
                        except CutShort as cut:
                            is_over.wait(retries.pause_s(cut, file.size_bytes))
                        stream = None
            except Exception as error:  # noqa: BLE001  the waiting thread raises it
                errors.append(error)
                is_over.set()

        threads = [threading.Thread(target=work, daemon=True) for _ in parts[:STREAMS]]
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads) and not is_over.wait(_TICK_EVERY_S):
                self._hash_more()
        finally:
            is_over.set()
            ends_at = time.monotonic() + _LEAVE_AFTER_S
            for thread in threads:
                thread.join(max(0.0, ends_at - time.monotonic()))
        if errors:
            raise errors[0]

    def _received(self, file: PartFile, stream: Stream, at: int, end: int | None) -> Iterator[int]:
        """Writes the bytes of a stream that is open at `at`, up to `end`; yields each offset reached."""
        start, crc = at, 0
        with closing(stream):
            try:
                while at != end and (block := next(stream.blocks, b"")):
                    data = block if end is None else block[: end - at]
                    file.write(at, data)
                    at, crc = at + len(data), zlib.crc32(data, crc)
                    if at - start >= PART_BYTES:
                        file.record(start, at, crc)
                        start, crc = at, 0
                    yield at
                    if end is None:
                        self._check_space()
            finally:
                file.record(start, at, crc)
        if end is None:
            file.total_bytes = at
        elif at < end:
            raise CutShort(f"{at} of {file.total_bytes} bytes were received")

    def _opened(self, file: PartFile, at: int, end: int) -> Stream:
        stream = self._source.opened(at, end, file.validator)
        if stream.offset != at or stream.validator != file.validator:
            stream.close()
            self._in_order = stream.validator == file.validator
            raise NotThatRange("it changed during the download, or the server no longer sends ranges")
        return stream

    def _check_space(self) -> None:
        """Check that the file fits on the disk: before a transfer, and during one of unknown length.

        Raises:
            StorageError: it does not fit.
        """
        file, folder = self.file, self._folder.parent
        if file.total_bytes is None:
            needed_bytes, why = _KEPT_FREE_BYTES, "have to stay free, because its server sends no length"
        else:
            needed_bytes, why = file.total_bytes - file.size_bytes, "are missing"
        if (free_bytes := shutil.disk_usage(folder).free) < needed_bytes:
            raise StorageError(
                f"{masked(self._uri)} does not fit: {needed_bytes} bytes {why}, "
                f"{free_bytes} are free at {folder}.\n"
                "Free space there, or store the data elsewhere."
            )
