"""A folder of files that becomes visible atomically, such as a checkpoint."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

# A file is synced each time that this many bytes were written: otherwise a node with much memory takes all of
# them at once, and the one sync at the end lasts as long as the disk needs, without visible progress.
_SYNC_BYTES = 1 << 30
PIECE_BYTES = 16 << 20
HIDDEN = "."  # names with this prefix are unfinished or being removed; readers ignore them


@dataclass(frozen=True)
class WrittenFile:
    """A file after its write: its size in bytes, and the sha256 of the written bytes."""

    size_bytes: int
    sha256: str


class _HashingFile:
    """A write-only file that hashes its bytes during the write, so that they are not read back.

    `size_bytes` grows while it is written, also within a call: torch passes a whole tensor in one.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.flush = file.flush
        self.sha256 = hashlib.sha256()
        self.size_bytes = self._synced_bytes = 0

    def write(self, data: bytes | bytearray | memoryview) -> int:
        whole = memoryview(data).cast("B")
        for start in range(0, whole.nbytes, PIECE_BYTES):
            self._write_piece(whole[start : start + PIECE_BYTES])
        return whole.nbytes

    def _write_piece(self, piece: memoryview) -> None:
        self.sha256.update(piece)
        try:
            self._file.write(piece)
            if self.size_bytes + len(piece) - self._synced_bytes >= _SYNC_BYTES:
                self._file.flush()
                os.fdatasync(self._file.fileno())
                self._synced_bytes = self.size_bytes + len(piece)
        except OSError as error:
            what = f"{error.strerror}: {len(piece)} bytes did not fit after the first {self.size_bytes}"
            raise OSError(error.errno, what, self._file.name) from error
        self.size_bytes += len(piece)


class PosixTree:
    """Files that become visible together, when the marker is committed.

    Only one writer may ever use a name. The files are written to a hidden sibling folder; `commit` writes the
    marker last and renames the folder. Every method raises OSError if the file system refuses;
    the methods of S3Tree raise StorageError.

    Attributes:
        files: the files that were written.
        handle: for `join_tree` of other processes.

    rename() onto a folder that is not empty fails, so a second writer of the same name cannot replace a
    committed tree: FileExistsError.
    """

    def __init__(self, target: Path, handle: str = "") -> None:
        """Create the hidden folder, or use the existing one with the name `handle`."""
        self.files: dict[str, WrittenFile] = {}
        self.handle = handle or f"{HIDDEN}{target.name}.{uuid.uuid4().hex[:8]}.tmp"
        self.target, self._work = target, target.parent / self.handle
        if not handle:
            self._work.mkdir(parents=True)

    @contextmanager
    def create(self, name: str) -> Iterator[_HashingFile]:
        """Create a file of the tree; it is durable (on disk, or uploaded) when the block ends."""
        with (self._work / name).open("xb") as file:
            hashing = _HashingFile(file)
            yield hashing
            file.flush()
            os.fsync(file.fileno())
        self.files[name] = WrittenFile(hashing.size_bytes, hashing.sha256.hexdigest())

    def commit(self, marker: str, data: bytes) -> None:
        """Write the marker, which makes the tree visible under its name.

        Raises:
            FileExistsError: the name is taken; that tree is not changed.
        """
        with self.create(marker) as file:
            file.write(data)
        fsync_folder(self._work)
        try:
            self._work.rename(self.target)
        except OSError as error:
            if not self.target.exists():
                raise
            if self._work.exists():  # else NFS has repeated the request, because its answer was lost
                raise FileExistsError(f"{self.target} exists already") from error
        fsync_folder(self.target.parent)

    def abort(self) -> None:
        """Remove the written files, which were never visible, as far as possible.

        `collect_leftovers` removes the rest later.
        """
        shutil.rmtree(self._work, ignore_errors=True)


def fsync_folder(folder: Path) -> None:
    """Sync the entries of a folder where that is possible, so that they survive a crash of the machine."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # AFS and some FUSE have no sync of folders
            raise
    finally:
        os.close(fd)


def remove_tree(folder: Path) -> None:
    """Rename a folder to a hidden name, then remove it.

    A kill in between leaves no partial folder under the original name.
    """
    doomed = folder.parent / f"{HIDDEN}{folder.name}.{uuid.uuid4().hex[:8]}.gone"
    folder.rename(doomed)
    if doomed.is_symlink():  # to a checkpoint that a person has moved to another disk
        return doomed.unlink()
    try:
        shutil.rmtree(doomed)
    except OSError as error:
        # NFS keeps a file that a process of this node has open, under another name, until it is closed: then
        # `collect_leftovers` removes the rest.
        if error.errno not in (errno.ENOTEMPTY, errno.EBUSY):
            raise OSError(error.errno, error.strerror, str(doomed)) from error  # where the rest of it is now


def collect_leftovers(parent: Path, is_over: Callable[[str], bool]) -> list[str]:
    """Remove what killed writers and removers left behind in `parent`; returns the names.

    Raises:
        OSError: it cannot be listed; FileNotFoundError if it does not exist.
    """
    leftovers = [p for p in parent.iterdir() if p.name.startswith(HIDDEN) and _is_leftover(p, is_over)]
    for path in leftovers:
        if path.suffix == ".gone":
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):  # a writer that still lives finds its folder gone, not half empty
                remove_tree(path)
    return sorted(path.name for path in leftovers)


def _is_leftover(path: Path, is_over: Callable[[str], bool]) -> bool:
    name = path.name.removeprefix(HIDDEN).rsplit(".", maxsplit=2)[0]
    return path.suffix == ".gone" or (path.suffix == ".tmp" and is_over(name))
