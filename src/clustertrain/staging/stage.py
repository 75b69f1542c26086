"""stage(): fetches a data set once, verifies it and publishes it atomically, for any number of callers.

entry.py has its paths, fetch.py downloads it, archive.py unpacks it. This module selects the process that
does so, and publishes the result.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from clustertrain.errors import DataError, RunStopped, StorageError
from clustertrain.staging.archive import extract as extract_archive
from clustertrain.staging.entry import MARKER, Marker, StagedData, local_folder
from clustertrain.staging.fetch import fetch
from clustertrain.staging.lease import Contender, Lease, LeaseLost
from clustertrain.staging.part import Download, Tick, can_go_on
from clustertrain.staging.source import masked
from clustertrain.storage.location import Location
from clustertrain.storage.posix import refused
from clustertrain.storage.posix_tree import fsync_folder, remove_tree
from clustertrain.storage.record_file import encoded

_LOOK_EVERY_S = 0.2
REPORT_EVERY_S = 0.5


def stage(
    name: str,
    location: Location,
    *,
    sha256: str | None,
    extract: bool,
    into: Path,
    on_event: Callable[[dict[str, Any]], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    lease_s: float = 30.0,
) -> Path:
    """Return the local path of a data set; stage it into the folder `into` if it is not there yet.

    Any number of processes on any number of hosts that share `into` may call this at the same time: one
    fetches the data, the others wait. If that process dies, another one continues its download.

    Args:
        name: the name of the data set in the job; for events and messages.
        location: a path, `file://…`, `http(s)://…` or `s3://bucket/key`, with the options of the S3 client.
        sha256: of the file, 64 hexadecimal digits.
        extract: unpack the archive, and return the folder.
        on_event: called with dicts with event "stage", name, phase ("wait", "download", "extract", "ready"),
            bytes, total_bytes (None if unknown) and seconds since the call; at most twice a second, and
            with `problem` after each try that failed.
        should_stop: called twice a second; True ends the work with RunStopped.
        lease_s: after this time without a renewal of its lease, a process counts as dead.

    Returns:
        A file under its own name, the unpacked folder, or, if `location` is a folder, that folder.

    Raises:
        DataError: it does not exist, does not fit, does not verify, or its archive is unsafe.
        JobError: a scheme that is not supported.
        StorageError: `into` cannot be written.
        RunStopped: see should_stop. The received bytes are kept for the next start.
    """
    entry = StagedData.of(location, sha256, extract, into)
    if (found := entry.ready()) is not None:
        return found.path
    if (folder := local_folder(location)) is not None:
        return _used_in_place(folder, sha256, extract)
    report = _Report(name, on_event, should_stop)
    contender = Contender(entry.leases, entry.key, lease_s=lease_s)
    while (found := entry.ready()) is None:
        if (lease := contender.try_acquire()) is None:
            report.wait()
            time.sleep(min(_LOOK_EVERY_S, lease_s / 10))
            continue
        try:
            with lease:
                _stage_as_holder(entry, lease, report)
        except LeaseLost:
            continue  # another process stages it, or has staged it
    report.emit("ready", found.size_bytes, found.size_bytes)
    return found.path


def _used_in_place(folder: Path, sha256: str | None, extract: bool) -> Path:
    if extract or sha256:
        key = "extract: true" if extract else "sha256"
        raise DataError(
            f"{folder} is a folder, and {key} is only for a file.\nRemove {key}, or use an archive."
        )
    return folder


def _stage_as_holder(entry: StagedData, lease: Lease, report: _Report) -> None:
    """Fetch, verify, unpack and publish, as the holder of the lease."""
    is_there = entry.folder.exists()  # before `ready`: what another holder publishes meanwhile is not damaged
    if entry.ready() is not None:
        return
    work = entry.part(lease.token)
    try:
        if is_there:  # a marker without its content, or content that was cut
            lease.check()
            remove_tree(entry.folder)
        _take_over(entry, lease, work)
        part, tick = Download(work, masked(entry.location.uri)), report.ticker("download", lease)
        sha256 = fetch(entry.location, part, sha256=entry.sha256, tick=tick, on_cut=report.failed_try)
        _arrange(entry, part, sha256, work / "whole", report.ticker("extract", lease))
        lease.check()
        _publish(entry, work / "whole")
    except (OSError, StorageError) as error:
        lease.check()  # if the lease is lost, the next holder removes the files
        shutil.rmtree(work / "whole", ignore_errors=True)  # a disk that it filled must not stay full
        if isinstance(error.__cause__ or error, FileNotFoundError) and not work.exists():
            raise _removed(work) from error
        if isinstance(error, StorageError):
            raise
        raise refused(Path(error.filename or work), "written", error) from error
    finally:
        if lease.is_lost or not can_go_on(work):  # otherwise the next holder resumes from them
            shutil.rmtree(work, ignore_errors=True)


def _take_over(entry: StagedData, lease: Lease, work: Path) -> None:
    """Create `work` from the download of the last holder if that has certainly ended, and remove the others.

    A holder that was only stopped finds its folder gone, and cannot publish half of it.
    """
    others = [path for path in entry.parts() if path != work]
    if lease.ended_token is not None and (ended := entry.part(lease.ended_token)) in others:
        ended.rename(work)
    else:
        work.mkdir()
    for path in others:
        doomed = path.with_suffix(f".{uuid.uuid4().hex[:8]}.part")
        with suppress(OSError):
            shutil.rmtree(path.rename(doomed), ignore_errors=True)


def _arrange(entry: StagedData, part: Download, sha256: str, whole: Path, tick: Tick) -> None:
    """Create the folder in its final form: the content, then the marker."""
    shutil.rmtree(whole, ignore_errors=True)
    whole.mkdir()
    uri, content = masked(entry.location.uri), entry.content(whole)
    if entry.extract:
        try:
            size_bytes = extract_archive(part.path, content, tick=tick)
        except DataError as error:
            part.path.unlink()  # this archive is unusable; the next start downloads it again
            raise DataError(str(error).replace(part.path.name, uri, 1)) from error
        if (
            not part.path.exists()
        ):  # the libraries make the folders above a member: they would hide the removal
            raise _removed(whole.parent)
    else:
        content.parent.mkdir()
        size_bytes = part.path.stat().st_size
    _sync_file_system(whole)  # one call, because there may be a million files
    with (whole / MARKER).open("xb") as file:  # this does not create a folder that was removed
        file.write(encoded(Marker(uri, sha256, size_bytes, entry.extract, time.time())))
        file.flush()
        os.fsync(file.fileno())
    if entry.extract:
        part.path.unlink()
    else:  # a rename, because BeeGFS and AFS have links within one folder only
        part.path.rename(content)
        fsync_folder(content.parent)


def _removed(work: Path) -> LeaseLost:
    return LeaseLost(f"{work} was removed by an earlier holder, which had been stopped.")


def _publish(entry: StagedData, whole: Path) -> None:
    """Rename the folder, which fails if the data set exists.

    Files that others may be reading are never replaced.
    """
    fsync_folder(whole)
    try:
        whole.rename(entry.folder)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return
        raise
    fsync_folder(entry.into)


def _sync_file_system(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(fd) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(fd)


class _Report:
    """Reports events and checks for a stop request, both a few times a second at most."""

    def __init__(
        self,
        name: str,
        on_event: Callable[[dict[str, Any]], None] | None,
        should_stop: Callable[[], bool] | None,
    ) -> None:
        self._name = name
        self._on_event = on_event
        self._should_stop = should_stop
        self._began_at = self._reported_at = time.monotonic()
        self._phase = ""

    def ticker(self, phase: str, lease: Lease) -> Tick:
        """Return a function that the current phase calls often; it raises RunStopped or LeaseLost."""

        def tick(done_bytes: int, total_bytes: int | None) -> None:
            if self._phase != phase or self._is_due():
                lease.check()
                self.emit(phase, done_bytes, total_bytes)

        return tick

    def _is_due(self) -> bool:
        """Return whether it is time for a report, and so for the check; raise RunStopped at a stop."""
        if time.monotonic() - self._reported_at < REPORT_EVERY_S:
            return False
        self._reported_at = time.monotonic()
        if self._should_stop is not None and self._should_stop():
            what = f"Stopped while data set {self._name} was being staged"
            raise RunStopped(f"{what}; the next start continues from there.", checkpointed=False)
        return True

    def wait(self) -> None:
        if self._phase != "wait":
            self.emit("wait", None, None)
        self._is_due()

    def failed_try(self, why: Exception) -> None:
        self.emit("download", None, None, problem=str(why))

    def emit(self, phase: str, done_bytes: int | None, total_bytes: int | None, **more: str) -> None:
        self._phase, self._reported_at = phase, time.monotonic()
        if self._on_event is not None:
            self._on_event(
                {
                    "event": "stage",
                    "name": self._name,
                    "phase": phase,
                    "bytes": done_bytes,
                    "total_bytes": total_bytes,
                    "seconds": time.monotonic() - self._began_at,
                    **more,
                }
            )
