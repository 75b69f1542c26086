"""Fetches one file from its source to the disk, resumes after a cut or a kill, and computes its sha256.

The bytes are collected in a `PartFile` (partial_file.py). A source that serves any range of one version is
read by several streams in parallel, any other source by one stream from start to end. Each stream has a
thread; the calling thread starts them, decides after each, and hashes the bytes that have arrived.
"""

from __future__ import annotations

import hashlib
import queue
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from clustertrain.errors import DataError, JobError, StorageError
from clustertrain.staging.local_file import FileSource
from clustertrain.staging.partial_file import UNKNOWN, PartFile, Progress, Tick, forget, read_progress
from clustertrain.staging.source import CutShort, NotThatRange, Retries, Source, Stream, masked
from clustertrain.storage.location import Location, local_path
from clustertrain.units import duration_text

PART_BYTES = 16 << 20  # of one request, at most; large, because every request has a fixed cost
STREAMS = 8
_TICK_EVERY_S = 0.01
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

    `on_cut` is called with each new reason for which a stream was cut; after a pause it is tried again.

    After a cut the transfer is resumed if the source can prove that its bytes are still the same, and
    restarted otherwise. It fails after `retry_s` of the source without a new byte, and after its `timeout_s`.

    Raises:
        DataError: it cannot be fetched, or has another checksum; in the latter case nothing of it is kept.
        StorageError: it does not fit on the disk, or cannot be written.
    """
    download = _Download(source, folder, uri, tick, on_cut)
    try:
        fetched = download.complete()
        if sha256 not in (None, fetched.sha256) and download.was_cut:
            download.begin(Progress.nothing())  # the resumed bytes may be from two different files
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


@dataclass
class _Part:
    """The bytes from `at` to `end`, which one stream at a time fetches."""

    at: int
    end: int


_Outcome = Stream | Exception | None
_Outcomes = queue.SimpleQueue[tuple[_Part, _Outcome]]


class _Download:
    """The transfer of one file. `file` and the queue of its threads are replaced with the version.

    A thread that still waits for its server at the end is abandoned: a closed file takes no bytes.
    (A ThreadPoolExecutor would wait for it at the exit of Python.)
    """

    def __init__(
        self, source: Source, folder: Path, uri: str, tick: Tick, on_cut: Callable[[CutShort], None]
    ) -> None:
        self._source, self._folder, self._uri, self._tick, self._on_cut = source, folder, uri, tick, on_cut
        self._ends_at = time.monotonic() + source.timeout_s
        self._retries, self._last_cut, self._has_ranges = Retries(source, uri), "", True
        progress = read_progress(folder)
        self.was_cut = progress is not None
        self._take_up(progress or Progress.nothing())

    def _take_up(self, progress: Progress) -> None:
        """Go on with a file of which there is this much."""
        self.file = PartFile(self._folder, progress)
        self._sha256, self._hashed_bytes = hashlib.sha256(), 0
        most_bytes = UNKNOWN if progress.validator is None else PART_BYTES
        self._parts = (
            _Part(at, min(at + most_bytes, end))
            for start, end in progress.gaps
            for at in range(start, end, most_bytes)
        )
        self._running, self._outcomes = 0, _Outcomes()

    def begin(self, progress: Progress) -> None:
        """Begin anew."""
        self.file.close()
        self._take_up(progress)

    def complete(self) -> Fetched:
        """Transfer until the file is complete."""
        while gaps := self.file.progress.gaps:
            while self._running < STREAMS and (part := next(self._parts, None)):
                self._start(part)
            has_hashed = self._hash_some(gaps[0][0])
            with suppress(queue.Empty):
                self._take(*self._outcomes.get(timeout=0 if has_hashed else _TICK_EVERY_S))
            self._report()
        while self._hash_some(UNKNOWN):
            self._report()
        self._report()
        return Fetched(self.file.path, self._hashed_bytes, self._sha256.hexdigest())

    def _hash_some(self, end: int) -> bool:
        """Hash some of the bytes before `end`; returns whether there were any."""
        data = self.file.read(self._hashed_bytes, end)
        self._sha256.update(data)
        self._hashed_bytes += len(data)
        return data != b""

    def _report(self) -> None:
        """
        Raises:
            DataError: the time of the download is over.
        """
        if time.monotonic() >= self._ends_at:
            last = f" The last try: {self._last_cut}." if self._last_cut else ""
            raise DataError(
                f"{masked(self._uri)} was not complete after {duration_text(self._source.timeout_s)}, "
                f"the limit `timeout` of this data set (data.*.timeout).{last}\n"
                "Run again to continue from there, or raise the limit."
            )
        self._tick(self.file.progress.size_bytes, self.file.progress.total_bytes)

    def _start(self, part: _Part, stream: Stream | None = None, after_s: float = 0.0) -> None:
        self._running += 1
        thread = threading.Timer(after_s, self._work, (self.file, self._outcomes, part, stream))
        thread.daemon = True
        thread.start()

    def _work(self, file: PartFile, outcomes: _Outcomes, part: _Part, stream: Stream | None) -> None:
        """Fetch a part; of a file of unknown version, only open its stream. In a thread of its own."""
        if not file.is_open:  # it was given up in the pause
            return
        outcome: _Outcome = None
        is_first = stream is None and file.progress.validator is None
        try:
            stream = stream or self._source.read_range(part.at, part.end, file.progress.validator)
            if is_first:
                outcome = stream
            else:
                self._receive(file, part, stream)
        except Exception as error:  # noqa: BLE001  the waiting thread raises it
            outcome = error
        outcomes.put((part, outcome))

    def _receive(self, file: PartFile, part: _Part, stream: Stream) -> None:
        with closing(stream):
            for block in stream.blocks:
                data = block[: part.end - part.at]
                file.write(part.at, data)
                part.at += len(data)
                if part.at == part.end:
                    return file.save()
                if part.end == UNKNOWN:
                    self._check_space(file.progress)
        if part.end != UNKNOWN:
            raise CutShort(f"{part.at} of {file.progress.total_bytes} bytes were received")
        return file.end_at(part.at)

    def _take(self, part: _Part, outcome: _Outcome) -> None:
        """Decide what follows from the outcome of a thread."""
        self._running -= 1
        if isinstance(outcome, Stream):
            validator = outcome.validator if outcome.has_ranges and self._has_ranges else None
            self.begin(Progress.nothing(validator, outcome.total_bytes))
            if first := next(self._parts, None):
                self._start(first, outcome)
            else:
                outcome.close()
            self._check_space(self.file.progress)
        elif isinstance(outcome, CutShort):
            self._try_again(part, outcome)
        elif outcome is not None:
            raise outcome

    def _try_again(self, part: _Part, cut: CutShort) -> None:
        pause_s = self._retries.pause_s(cut, self.file.progress.size_bytes)
        if str(cut) != self._last_cut:
            self._on_cut(cut)
        self.was_cut, self._last_cut = True, str(cut)
        if isinstance(cut, NotThatRange):
            self._has_ranges = False
        if not self._has_ranges or self.file.progress.validator is None:
            self.begin(Progress.nothing())
            part = next(self._parts)
        self._start(part, after_s=pause_s)

    def _check_space(self, progress: Progress) -> None:
        """Check that the file fits on the disk: before a transfer, and during one of unknown length.

        Raises:
            StorageError: it does not fit.
        """
        if progress.total_bytes is None:
            needed_bytes, why = _KEPT_FREE_BYTES, "have to stay free, because its server sends no length"
        else:
            needed_bytes, why = progress.total_bytes - progress.size_bytes, "are missing"
        folder = self._folder.parent
        if (free_bytes := shutil.disk_usage(folder).free) < needed_bytes:
            raise StorageError(
                f"{masked(self._uri)} does not fit: {needed_bytes} bytes {why}, "
                f"{free_bytes} are free at {folder}.\n"
                "Free space there, or store the data elsewhere."
            )
