"""A Store on a file system: a local disk, or one that all nodes share (NFS, Lustre, GPFS, CephFS).

File locks are not used, because flock is local on many NFS mounts. link() and rename() are atomic on each of
these file systems, also for other hosts.
"""

from __future__ import annotations

import builtins
import errno
import os
import stat
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from clustertrain.errors import StorageError
from clustertrain.node.regular_file import open_file, read_file
from clustertrain.storage.location import Location
from clustertrain.storage.posix_tree import PosixTree, collect_leftovers, fsync_folder, remove_tree

_T = TypeVar("_T")
_STALE_TRIES = 5


@dataclass(frozen=True)
class PosixStore:
    """Files under keys whose parts are separated by '/': paths below `root`.

    Every method raises StorageError on a refusal. Names that start with '.' belong to the store, such as
    unfinished files; `list` and `trees` omit them.
    """

    root: Path

    @property
    def location(self) -> Location:
        """The location of the store, with the options of its S3 client."""
        return Location(str(self.root))

    def uri(self, key: str) -> str:
        """Return the key for messages: a plain path on a file system, or s3://bucket/… on S3."""
        return str(self._path(key))

    def read_or_none(self, key: str) -> bytes | None:
        """Return the bytes of a key, or None if there is no such key."""
        path = self._path(key)
        return _unless_absent(path, "read", lambda: read_file(path))

    def write_atomic(self, key: str, data: bytes) -> None:
        """Write or replace a key; a reader finds the old bytes or the new ones, never a mixture."""
        path = self._path(key)
        try:
            again_when_stale(lambda: _replace(path, data))
        except OSError as error:
            raise refused(path, "written", error) from error

    def create_exclusive(self, key: str, data: bytes) -> bool:
        """Write a key that does not exist yet, atomically. Returns False if it exists and changes nothing.

        Of any number of callers on any number of hosts, exactly one gets True.
        """
        return create_exclusive(self._path(key), data)

    def list(self, prefix: str) -> list[str]:
        """Return the names directly under a prefix, sorted, or an empty list if there are none."""
        path = self._path(prefix)
        names = _unless_absent(path, "listed", lambda: [found.name for found in path.iterdir()]) or []
        return sorted(name for name in names if not name.startswith("."))

    def remove(self, key: str) -> None:
        """Remove a key; a missing key is not an error."""
        path = self._path(key)
        _unless_absent(path, "removed", path.unlink)

    def local_folder(self, key: str) -> Path:
        """Return the path of a folder in this machine's file system, or None on S3."""
        return self._path(key)

    def size_or_none(self, key: str) -> int | None:
        """Return the size of a key in bytes, or None if there is no such key."""
        path = self._path(key)
        found = _unless_absent(path, "read", path.stat)
        return None if found is None else found.st_size

    def blocks(self, key: str, *, block_bytes: int = 1 << 20) -> Iterator[bytes]:
        """Yield the bytes of a key in order, at most `block_bytes` of them in memory.

        Raises:
            FileNotFoundError: there is no such key; at the first block.
        """
        path = self._path(key)
        try:
            with again_when_stale(lambda: open_file(path)) as file:
                while block := file.read(block_bytes):
                    yield block
        except (FileNotFoundError, NotADirectoryError) as error:
            raise FileNotFoundError(f"{path} does not exist") from error
        except OSError as error:
            raise refused(path, "read", error) from error

    def new_tree(self, key: str) -> PosixTree:
        """Create a tree that will be visible under `key`.

        Raises:
            OSError: a file system refuses.
        """
        return PosixTree(self._path(key))

    def join_tree(self, key: str, handle: str) -> PosixTree:
        """Return the tree that another process has begun, to add files.

        Pass `files` to that process, which commits: it must be given their names before `commit`. Files of
        one name must not be created twice.
        """
        return PosixTree(self._path(key), handle)

    def trees(self, prefix: str, marker: str) -> builtins.list[str]:
        """Return the names of the trees under a prefix, sorted.

        On a file system every folder counts, so that a reader can report one whose marker was lost. On S3 a
        folder without its marker is still being written.
        """
        folder = self._path(prefix)
        while True:
            found = self.list(prefix)
            trees = [name for name in found if _is_folder(folder / name)]
            if all(_is_there(folder / name) for name in set(found) - set(trees)):
                return trees
            # One was removed meanwhile, so the listing may lack the one for which it was.

    def remove_tree(self, key: str, marker: str) -> None:
        """Remove a tree so that a kill in between leaves no tree with a marker.

        Raises:
            OSError: a file system refuses; FileNotFoundError if it does not exist.
        """
        remove_tree(self._path(key))

    def collect_leftovers(
        self, prefix: str, marker: str, is_over: Callable[[str], bool]
    ) -> builtins.list[str]:
        """Remove what killed writers and removers left of trees under a prefix; returns the names.

        It also removes what another process is still writing, except of trees for whose name `is_over` is
        False. Such a process then fails to commit, or on S3 commits a tree without files.
        """
        path = self._path(prefix)
        return _unless_absent(path, "listed", lambda: collect_leftovers(path, is_over)) or []

    def _path(self, key: str) -> Path:
        return self.root / key


def create_exclusive(path: Path, data: bytes) -> bool:
    """Create a file with these bytes, unless it exists: exactly one of all callers gets True.

    Raises:
        StorageError: the file system refuses.
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
        # NFS repeats a request whose answer was lost; the second request then finds the link of the first.
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
    """Write a hidden file beside `path` with these bytes, fsync it, and return its path."""
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


def again_when_stale(operation: Callable[[], _T]) -> _T:
    """Retry an operation after ESTALE, which NFS returns if another host replaced the file."""
    for _ in range(_STALE_TRIES - 1):
        try:
            return operation()
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
    return operation()


def _unless_absent(path: Path, verb: str, operation: Callable[[], _T]) -> _T | None:
    """Return the result of an operation on a path, or None if there is no such file."""
    try:
        return again_when_stale(operation)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise refused(path, verb, error) from error


def _is_folder(path: Path) -> bool:
    """Return whether the path is a folder; a link to nothing or to itself is not one."""
    try:
        return stat.S_ISDIR(again_when_stale(path.stat).st_mode)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return False
        raise refused(path, "read", error) from error


def _is_there(path: Path) -> bool:
    """Return whether the name exists, also as a link to nothing."""
    return _unless_absent(path, "read", path.lstat) is not None


def refused(path: Path, verb: str, error: OSError) -> StorageError:
    """Return the error for a path that the operating system refused."""
    return StorageError(
        f"{path} cannot be {verb} by uid {os.geteuid()}: {error.strerror or error}.\n"
        "Free space there, give that user access, or use another path that every node can write."
    )
