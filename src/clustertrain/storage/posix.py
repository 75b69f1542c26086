"""A Store on a file system: a local disk, or one that all nodes share (NFS, Lustre, GPFS, CephFS).

Locks of the file system are not used (flock is local on many NFS mounts): link() and rename() are what
every one of them does atomically, seen from all hosts.
"""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from clustertrain.errors import StorageError

_T = TypeVar("_T")
_STALE_TRIES = 5


@dataclass(frozen=True)
class PosixStore:
    """Keys are paths below `root`. Names that begin with '.' are unfinished; `list` leaves them out."""

    root: Path

    def uri(self, key: str) -> str:
        return str(self._path(key))

    def read_or_none(self, key: str) -> bytes | None:
        path = self._path(key)
        try:
            return again_when_stale(path.read_bytes)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise refused(path, "read", error) from error

    def write_atomic(self, key: str, data: bytes) -> None:
        path = self._path(key)
        try:
            again_when_stale(lambda: _replace(path, data))
        except OSError as error:
            raise refused(path, "written", error) from error

    def create_exclusive(self, key: str, data: bytes) -> bool:
        return create_exclusive(self._path(key), data)

    def list(self, prefix: str) -> list[str]:
        path = self._path(prefix)
        try:
            names = again_when_stale(lambda: [found.name for found in path.iterdir()])
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise refused(path, "listed", error) from error
        return sorted(name for name in names if not name.startswith("."))

    def remove(self, key: str) -> None:
        path = self._path(key)
        try:
            path.unlink(missing_ok=True)
        except NotADirectoryError:
            return
        except OSError as error:
            raise refused(path, "removed", error) from error

    def _path(self, key: str) -> Path:
        return self.root / key if key else self.root


def create_exclusive(path: Path, data: bytes) -> bool:
    """Create a file with its bytes, unless the name is taken: exactly one of all callers gets True.

    Raises:
        StorageError: the file system says no.
    """
    try:
        temporary = _write_temporary(path, data)
        try:
            return _link(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise refused(path, "created", error) from error


def _link(temporary: Path, path: Path) -> bool:
    try:
        os.link(temporary, path)
    except FileExistsError:
        # NFS repeats a request whose answer was lost, and the repetition finds what the first one made.
        try:
            return temporary.samefile(path)
        except FileNotFoundError:
            return False
    fsync_folder(path.parent)
    return True


def _replace(path: Path, data: bytes) -> None:
    temporary = _write_temporary(path, data)
    try:
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


def _write_temporary(path: Path, data: bytes) -> Path:
    """A hidden file beside `path` with these bytes, on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{uuid.uuid4().hex}.tmp"
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def fsync_folder(folder: Path) -> None:
    """Make the names in a folder survive a crash of the machine."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def again_when_stale(operation: Callable[[], _T]) -> _T:
    """NFS answers ESTALE when another host replaced what a name meant; looking the name up again helps."""
    for _ in range(_STALE_TRIES - 1):
        try:
            return operation()
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
    return operation()


def refused(path: Path, verb: str, error: OSError) -> StorageError:
    """What to tell of a path that the operating system refused, by what it said."""
    remedy = {
        errno.ENOSPC: "Free space there, or name another place.",
        errno.EDQUOT: "Your quota there is used up: free space, or name another place.",
        errno.EROFS: "It is mounted read-only here: name a place that is writable on every node.",
        errno.ENOTDIR: "A part of the path is a file, not a folder: name another place.",
        errno.EPERM: "The file system may lack hard links, which a run needs: name another place.",
        errno.EOPNOTSUPP: "The file system lacks something a run needs (hard links): name another place.",
    }.get(error.errno or 0, "Give that user access, or name a place that every node can write.")
    return StorageError(
        f"{path} cannot be {verb} by uid {os.geteuid()}: {error.strerror or error}.\n{remedy}"
    )
