"""A data set arrives once, whole and verified, whoever asks and however many.

    <into>/<key>/READY.json     what it is and where it came from; written last
                 content/       the file under its own name, or the unpacked folder
    <into>/.leases/<key>.<n>    who brings it (lease.py)
    <into>/.<key>.<token>.part/ what one holder has so far; the next holder goes on from there

The key names the content: by the sha256 when the job gives one, wherever the bytes come from; by path, size
and times of change for a local file without one, so that a changed file is another data set; by the URL
alone for the web, whose first answer is kept, so that a restart trains on the data it began with (give a
sha256 to name a version). A folder is used where it lies and never copied.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from clustertrain.archive import extract as extract_archive
from clustertrain.errors import DataError, RunStopped, StorageError
from clustertrain.fetch import Part, Tick, fetch, noted_progress
from clustertrain.lease import Contender, Lease, LeaseLost
from clustertrain.sources import is_http, masked, missing, open_source
from clustertrain.storage import local_path
from clustertrain.storage.posix import fsync_folder, refused
from clustertrain.storage.tree import remove_tree

_MARKER = "READY.json"
_LOOK_EVERY_S = 0.2
_CHECK_EVERY_S = 0.5
_TELL_EVERY_S = 0.5


class StagingInterrupted(RunStopped):
    """A stop was asked for while data was on its way; what came so far is kept for the next start."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"Stopped while data set {name} was on its way; the next start goes on from there.",
            checkpointed=False,
        )
        self.name = name

    def __reduce__(self) -> tuple[type[StagingInterrupted], tuple[str]]:
        return type(self), (self.name,)  # it travels from a worker to the driver


def stage(
    name: str,
    uri: str,
    *,
    sha256: str | None,
    extract: bool,
    into: Path,
    on_event: Callable[[dict[str, Any]], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    lease_s: float = 30.0,
) -> Path:
    """The local path of a data set, brought into the folder `into` if it is not there yet.

    Any number of processes on any number of hosts that share `into` may call this at once: one brings the
    data, the others wait for it. When that one dies, another goes on with what is there.

    Args:
        name: what the job calls it; for events and messages.
        uri: a path, `file://…`, `http://…` or `https://…`.
        sha256: of the file, 64 hexadecimal digits.
        extract: unpack the archive, and return the folder.
        on_event: gets dicts with event "stage", name, phase ("wait", "download", "extract", "ready"), bytes,
            total_bytes (None where unknown) and seconds since the call; two a second at most.
        should_stop: asked twice a second; True ends the work with StagingInterrupted.
        lease_s: a process that gives no sign of life for so long is no longer waited for.

    Returns:
        A file under its own name, the unpacked folder, or, where `uri` is a folder, that folder.

    Raises:
        DataError: it is not there, does not fit, does not verify, or its archive is unsafe.
        JobError: a scheme that is not supported.
        StorageError: `into` cannot be written.
        StagingInterrupted: see should_stop.
    """
    sha256 = sha256.lower() if sha256 else None
    entry = _Entry.of(uri, sha256, extract, into)
    if (found := entry.ready()) is not None:
        return found.path
    if (folder := _local_folder(uri)) is not None:
        return _used_in_place(folder, sha256, extract)
    report = _Report(name, on_event, should_stop)
    contender = Contender(into / ".leases", entry.key, lease_s=lease_s)
    while (found := entry.ready()) is None:
        if (lease := contender.try_acquire()) is None:
            report.wait()
            time.sleep(min(_LOOK_EVERY_S, lease_s / 10))
            continue
        try:
            with lease:
                _bring(entry, lease, report)
        except LeaseLost:
            continue  # someone else brings it, or has brought it
    report.tell("ready", found.size_bytes, found.size_bytes)
    return found.path


@dataclass(frozen=True)
class _Ready:
    """A data set that is there: where, and the bytes of the file or of all files unpacked."""

    path: Path
    size_bytes: int


@dataclass(frozen=True)
class _Entry:
    """One data set in one folder."""

    uri: str
    sha256: str | None
    extract: bool
    into: Path
    file_name: str
    key: str

    @classmethod
    def of(cls, uri: str, sha256: str | None, extract: bool, into: Path) -> _Entry:
        path = urlsplit(uri).path if "://" in uri else uri
        file_name = (
            re.sub(r"[^A-Za-z0-9._-]", "_", unquote(path).rpartition("/")[2])[-100:].lstrip(".") or "data"
        )
        if sha256 is not None:
            identity: list[Any] = ["sha256", sha256]
        elif is_http(uri):
            identity = ["url", uri]
        else:
            identity = ["file", *_local_identity(uri)]
        identity += [extract, None if extract else file_name]
        return cls(
            uri,
            sha256,
            extract,
            into,
            file_name,
            hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:40],
        )

    @property
    def folder(self) -> Path:
        return self.into / self.key

    def content(self, folder: Path) -> Path:
        return folder / "content" if self.extract else folder / "content" / self.file_name

    def ready(self) -> _Ready | None:
        """The data set, when it is there and whole. Two looks at the disk, no lease, no network."""
        path = self.content(self.folder)
        try:
            size_bytes = int(json.loads((self.folder / _MARKER).read_bytes())["bytes"])
            found_bytes = path.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{self.folder} cannot be read: {type(error).__name__}: {error}.\n"
                "Remove that folder, and the data is brought again."
            ) from error
        if not self.extract and found_bytes != size_bytes:
            return None  # someone cut it; it is brought again
        return _Ready(path, size_bytes)


def _local_identity(uri: str) -> tuple[str, int, int, int]:
    path = local_path(uri, what="data")
    try:
        found = path.stat()
    except OSError as error:
        raise missing(path, error) from error
    return str(path.resolve()), found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _local_folder(uri: str) -> Path | None:
    if is_http(uri):
        return None
    path = local_path(uri, what="data")
    return path.absolute() if path.is_dir() else None


def _used_in_place(folder: Path, sha256: str | None, extract: bool) -> Path:
    if extract or sha256:
        key = "extract: true" if extract else "sha256"
        raise DataError(
            f"{folder} is a folder, and {key} is for one file.\nLeave it out, or give the archive."
        )
    return folder


def _bring(entry: _Entry, lease: Lease, report: _Report) -> None:
    """Fetch, verify, unpack and publish, as the holder of the lease."""
    if entry.ready() is not None:
        return
    work = entry.into / f".{entry.key}.{lease.token}.part"
    try:
        if entry.folder.exists():  # a marker without its content, or content that someone cut
            remove_tree(entry.folder)
        work.mkdir()
        part = Part(work)
        tick = report.ticker("download", lease)
        _adopt(entry, part, work, tick)
        fetch(open_source(entry.uri), part, uri=entry.uri, sha256=entry.sha256, tick=tick)
        _arrange(entry, part, work / "whole", report.ticker("extract", lease))
        lease.check()
        _publish(entry, work / "whole")
    except OSError as error:
        lease.check()  # under a holder that lost, the next one clears things away
        raise refused(Path(error.filename or work), "written", error) from error
    except StorageError:
        lease.check()
        raise
    finally:
        if lease.is_lost or noted_progress(work) is None:  # else the next holder goes on from there
            shutil.rmtree(work, ignore_errors=True)


def _adopt(entry: _Entry, part: Part, work: Path, tick: Tick) -> None:
    """Go on from what earlier holders had, the most advanced first, and remove what they left."""
    others = [path for path in entry.into.glob(f".{entry.key}.*.part") if path != work]
    progress = {path: (noted_progress(path) or {"size_bytes": 0})["size_bytes"] for path in others}
    any(part.adopt(path, tick) for path in sorted(others, key=lambda path: -progress[path]))
    for path in others:
        shutil.rmtree(path, ignore_errors=True)


def _arrange(entry: _Entry, part: Part, whole: Path, tick: Tick) -> None:
    """The folder as it will be found: the content, then the marker."""
    shutil.rmtree(whole, ignore_errors=True)
    whole.mkdir()
    size_bytes = part.size_bytes
    if entry.extract:
        try:
            size_bytes = extract_archive(part.path, entry.content(whole), tick=tick)
        except DataError:
            part.begin(None)  # this archive will never do; the next start asks for it anew
            raise
    else:
        entry.content(whole).parent.mkdir()
        part.path.chmod(0o644)
        part.path.rename(entry.content(whole))
    _sync_file_system(whole)  # one call for what may be a million files
    marker = {
        "uri": masked(entry.uri),
        "sha256": part.sha256,
        "bytes": size_bytes,
        "extract": entry.extract,
        "written_at": time.time(),
    }
    with (whole / _MARKER).open("xb") as file:
        file.write(json.dumps(marker, indent=1).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    part.forget()


def _publish(entry: _Entry, whole: Path) -> None:
    """One rename, which fails when the data set is there: what others may be reading is never replaced."""
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
    """Tells what happens, and hears when to end; both a few times a second at most."""

    def __init__(
        self,
        name: str,
        on_event: Callable[[dict[str, Any]], None] | None,
        should_stop: Callable[[], bool] | None,
    ) -> None:
        self._name = name
        self._on_event = on_event
        self._should_stop = should_stop
        self._began_at = self._checked_at = self._told_at = time.monotonic()
        self._phase = ""

    def ticker(self, phase: str, lease: Lease) -> Tick:
        """A function for the work at hand to call often; it raises StagingInterrupted or LeaseLost."""

        def tick(done_bytes: int, total_bytes: int | None) -> None:
            if time.monotonic() - self._checked_at >= _CHECK_EVERY_S:
                lease.check()
            self.check_stop()
            if self._phase != phase or time.monotonic() - self._told_at >= _TELL_EVERY_S:
                self.tell(phase, done_bytes, total_bytes)

        return tick

    def check_stop(self) -> None:
        if time.monotonic() - self._checked_at < _CHECK_EVERY_S:
            return
        self._checked_at = time.monotonic()
        if self._should_stop is not None and self._should_stop():
            raise StagingInterrupted(self._name)

    def wait(self) -> None:
        if self._phase != "wait":
            self.tell("wait", None, None)
        self.check_stop()

    def tell(self, phase: str, done_bytes: int | None, total_bytes: int | None) -> None:
        self._phase, self._told_at = phase, time.monotonic()
        if self._on_event is not None:
            self._on_event(
                {
                    "event": "stage",
                    "name": self._name,
                    "phase": phase,
                    "bytes": done_bytes,
                    "total_bytes": total_bytes,
                    "seconds": time.monotonic() - self._began_at,
                }
            )
