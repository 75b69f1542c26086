"""A lease: one holder among any number of contenders, on any number of hosts that share a file system.

A lease is a series of files `<name>.1`, `<name>.2`, …; the creator of the highest number holds it. A
contender that finds the holder dead creates the next number with link(), which succeeds for exactly one
contender. Numbers only grow, so a holder that was stopped and resumes sees a higher number and knows that it
lost the lease. A takeover always replaces exactly the holder that was found dead.

A holder rewrites a counter; a contender that sees the same bytes for `lease_s` of its own watching takes
over. The clock of another host and the time stamps of the file system are not used. On the holder's own
machine a dead process is detected at once. filelock locks by flock, which many NFS mounts keep to one host,
or by a file that remains after a kill.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from clustertrain.errors import StorageError
from clustertrain.node.processes import Process, this_process
from clustertrain.node.regular_file import read_file
from clustertrain.storage.posix import again_when_stale, create_exclusive, refused
from clustertrain.storage.record_file import json_object, typed

_RECORD_BYTES = 1024
_BEATS_PER_LEASE = 8
_LOOKS_PER_LEASE = 5


class LeaseLost(StorageError):
    """Another process took the lease over; unfinished work under it must not be published."""


@dataclass(frozen=True)
class _Record(Process):
    """The content of a lease's file: the process that holds the lease, and its renewals.

    Attributes:
        token: a unique name of this holder.
        counter: grows with each renewal.
        released: whether the holder released the lease.
    """

    token: str
    counter: int
    released: bool

    def to_bytes(self) -> bytes:
        """Return the bytes, always of the same length, so that they completely overwrite an older record."""
        return json.dumps(asdict(self)).encode().ljust(_RECORD_BYTES - 1) + b"\n"

    @classmethod
    def parse(cls, data: bytes) -> _Record | None:
        """Return the record, or None for bytes that were read during a renewal, or that are not a record."""
        try:
            record = typed(cls, json_object(data))
        except (ValueError, RecursionError):
            return None
        return record if 0 < record.pid < 2**31 else None

    @property
    def is_over(self) -> bool:
        """Whether the holder released the lease, or ended on this machine."""
        return self.released or (self.is_here and self.is_gone)


class Lease:
    """A lease that this process holds, created by `Contender.try_acquire`; the end of the block releases it.

    `ended_token` is the token of the previous holder if that one has certainly ended, so that its files will
    not be written to again. It is None if that holder may only be stopped.

    A thread renews the lease. It cannot do so while the process is stopped; therefore call `check` before
    publishing anything.
    """

    def __init__(self, path: Path, record: _Record, lease_s: float, ended_token: str | None = None) -> None:
        self._path = path
        self._record = record
        self.ended_token = ended_token
        self._period_s = lease_s / _BEATS_PER_LEASE
        self._released = threading.Event()
        # Renewed in place: NFS may serve a replaced file from its name cache for a minute, but opening an
        # unchanged name gets the newest bytes from the server.
        try:
            self._fd = os.open(path, os.O_WRONLY)
        except FileNotFoundError as error:
            raise LeaseLost(f"{path} was taken over before this process could use it.") from error
        except OSError as error:
            raise refused(path, "opened", error) from error
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    @property
    def token(self) -> str:
        """A unique name of this holder."""
        return self._record.token

    @property
    def is_lost(self) -> bool:
        """Whether another process has taken over."""
        name, _, number = self._path.name.rpartition(".")
        return _numbers(self._path.parent, name)[-1:] != [int(number)]

    def check(self) -> None:
        """Raise LeaseLost if another process has taken over."""
        if self.is_lost:
            raise LeaseLost(
                f"{self._path} was taken over: this process (pid {os.getpid()}) was stopped for too long.\n"
                "Its unfinished work is discarded; the other process completes it."
            )

    def __enter__(self) -> Lease:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._released.set()
        self._thread.join()
        self._record = replace(self._record, released=True)
        try:
            self._write()
        finally:
            os.close(self._fd)

    def _renew(self) -> None:
        while not self._released.wait(self._period_s):
            self._record = replace(self._record, counter=self._record.counter + 1)
            self._write()

    def _write(self) -> None:
        try:
            os.pwrite(self._fd, self._record.to_bytes(), 0)
            os.fsync(self._fd)
        except OSError:
            # The file is gone with the lease (ESTALE), or the storage is briefly unavailable. In both cases
            # `check` decides later, and a lease that is not renewed is taken over.
            return


class Contender:
    """Waits for one lease; call `try_acquire` repeatedly, at least a few times in `lease_s`."""

    def __init__(self, folder: Path, name: str, *, lease_s: float = 30.0) -> None:
        self._folder = folder
        self._name = name
        self._lease_s = lease_s
        self._seen: tuple[int, bytes] | None = None
        self._unchanged_s = 0.0
        self._looked_at = time.monotonic()
        self._ended_token: str | None = None

    def try_acquire(self) -> Lease | None:
        """Return the lease if nobody holds it or its holder is dead; None if another process holds it.

        Raises:
            StorageError: the folder cannot be written.
        """
        numbers = _numbers(self._folder, self._name)
        if numbers and not self._is_over(numbers[-1]):
            return None
        number = numbers[-1] + 1 if numbers else 1
        record = _Record(**asdict(this_process()), token=uuid.uuid4().hex, counter=0, released=False)
        path = self._path(number)
        if not create_exclusive(path, record.to_bytes()):
            return None
        if _numbers(self._folder, self._name)[-1:] != [number]:
            return None  # others took over twice since the list was read, so this number was free again
        for old in numbers:  # oldest first, so that no earlier holder becomes the highest again
            self._path(old).unlink(missing_ok=True)
        try:
            return Lease(path, record, self._lease_s, self._ended_token)
        except LeaseLost:
            return None

    def _is_over(self, number: int) -> bool:
        """Return whether the lease is over: released, not renewed for `lease_s`, or its holder died here."""
        try:
            data = again_when_stale(lambda: read_file(self._path(number)))
        except FileNotFoundError:
            return False  # another process has just taken over; check again
        except OSError as error:
            raise refused(self._path(number), "read", error) from error
        # The time between two checks counts up to a limit: if this process itself was stopped, it did not
        # watch the holder meanwhile.
        now = time.monotonic()
        passed_s = min(now - self._looked_at, self._lease_s / _LOOKS_PER_LEASE)
        self._looked_at = now
        changed = self._seen != (number, data)
        self._seen = (number, data)
        self._unchanged_s = 0.0 if changed else self._unchanged_s + passed_s
        record = _Record.parse(data)
        self._ended_token = record.token if record is not None and record.is_over else None
        return self._ended_token is not None or self._unchanged_s >= self._lease_s

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._name}.{number}"


def _numbers(folder: Path, name: str) -> list[int]:
    try:
        names = again_when_stale(lambda: [path.name for path in folder.iterdir()])
    except FileNotFoundError:
        return []
    except OSError as error:
        raise refused(folder, "listed", error) from error
    pattern = re.compile(re.escape(name) + r"\.(\d+)")
    return sorted(int(match[1]) for found in names if (match := pattern.fullmatch(found)))
