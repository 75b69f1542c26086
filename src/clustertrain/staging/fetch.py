"""Fetches one file to the disk, resumes after a cut or a kill, and computes its sha256.

The file is received in a thread, which is left at a stop and at the end of the time: it may wait for its
server.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import TypeVar

from clustertrain.errors import DataError
from clustertrain.node.regular_file import NotAFile, open_file
from clustertrain.node.units import duration_text
from clustertrain.staging.part import Download, Tick
from clustertrain.staging.source import CHUNK_BYTES, WEB_RETRY_S, CutShort, Retries, masked, missing
from clustertrain.storage.location import Location, local_path

TICK_EVERY_S = 0.01

_T = TypeVar("_T")


def fetch(
    location: Location,
    part: Download,
    *,
    sha256: str | None,
    tick: Tick,
    on_cut: Callable[[CutShort], None] = lambda cut: None,
) -> str:
    """Fetch a whole file as `part`, or what is missing of it; returns its sha256.

    `on_cut` is called with each new reason for which the transfer was cut; after a pause it is tried again.

    A file of the web is resumed after a cut if the server can prove that its bytes are still the same; others
    begin anew. It fails after a time without a new byte, and after the `timeout_s` of a file of the web.

    Raises:
        DataError: it cannot be fetched, or has another checksum; in the latter case nothing of it is kept.
        JobError: a scheme that is not supported, or credentials in the URI.
        StorageError: it does not fit on the disk, or cannot be written.
    """
    uri, last_cut = masked(location.uri), ""
    limit_s = location.timeout_s if location.is_http else math.inf
    retries = Retries(location.retry_s if location.is_s3 else WEB_RETRY_S, location.uri)
    ends_at = time.monotonic() + limit_s

    def watch() -> None:
        if time.monotonic() >= ends_at:
            last = f" The last try: {last_cut}." if last_cut else ""
            raise DataError(
                f"{uri} was not complete after {duration_text(limit_s)}, "
                f"the limit `timeout` of this data set (data.*.timeout).{last}\n"
                "Run again to continue from there, or raise the limit."
            )
        tick(part.received_bytes, part.total_bytes)

    try:
        while not part.is_complete:
            try:
                _watched(partial(_receive, location, part), watch)
                if not part.is_complete:
                    raise CutShort(f"{part.received_bytes} of {part.total_bytes} bytes were received")
            except CutShort as cut:
                pause_s = retries.pause_s(cut, part.received_bytes)
                if str(cut) != last_cut:
                    on_cut(cut)
                last_cut = str(cut)
                _watched(partial(time.sleep, pause_s), watch)
        found = _watched(partial(_sha256_of, part.path), watch)
    finally:
        part.close()
    if sha256 not in (None, found):
        size_bytes = part.path.stat().st_size
        part.path.unlink()
        raise DataError(
            f"{uri} does not have the checksum in the job file ({size_bytes} bytes were received).\n"
            f"expected sha256 {sha256}\n"
            f"received sha256 {found}; correct the job, or find out who changed the file."
        )
    return found


def _receive(location: Location, part: Download) -> None:
    """Receive a file, or what is missing of it; it may be cut.

    Raises:
        CutShort: a transient error.
        DataError: a permanent error, such as a file that does not exist.
        JobError: a scheme that is not supported, or credentials in the URI.
        StorageError: it does not fit on the disk.
    """
    if location.is_s3:
        from clustertrain.staging import s3

        s3.receive(location, part)
    elif location.is_http:
        from clustertrain.staging import http  # urllib3 takes time to import

        http.receive(location.uri, part)
    else:
        _copy(local_path(location.uri, what="data"), part)


def _copy(path: Path, part: Download) -> None:
    try:
        file = open_file(path)
    except NotAFile as error:
        raise DataError(f"{path} is not a regular file.\nGive a file or a folder.") from error
    except OSError as error:
        raise missing(path, error) from error
    with file:
        before = os.fstat(file.fileno())
        part.begin(None, before.st_size)
        part.append(iter(partial(file.read, CHUNK_BYTES), b""))
        if os.fstat(file.fileno()).st_mtime_ns != before.st_mtime_ns:
            part.path.unlink(missing_ok=True)
            raise CutShort(f"{path} changed while it was copied")


def _watched(work: Callable[[], _T], watch: Callable[[], None]) -> _T:
    """Run a function in a thread and return its result; leave the thread if `watch` raises.

    A ThreadPoolExecutor would wait for it at the exit of Python.
    """
    outcome: Future[_T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001  the waiting thread raises it
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    while wait([outcome], TICK_EVERY_S).not_done:
        watch()
    watch()
    return outcome.result()


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
