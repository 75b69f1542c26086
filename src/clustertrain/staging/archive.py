"""Unpacks tar, tar.gz, tar.bz2, tar.xz and zip: only regular files and folders, within limits."""

from __future__ import annotations

import errno
import io
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Self

from clustertrain.errors import ClusterTrainError, DataError, RunStopped, StorageError
from clustertrain.node.units import shortened
from clustertrain.storage.posix import refused

# The limits of an unpacked archive. The free space of the disk is another limit.
MOST_MEMBERS = 20_000_000
MOST_RATIO = 200.0  # unpacked bytes per byte of archive, once more than 256 MiB are unpacked

_CHUNK_BYTES = 1 << 20
_HEADER_BYTES = 1 << 20  # real ones are small
RATIO_FROM_BYTES = 256 << 20  # below this size a high ratio does no harm
_ZIP_STARTS = (b"PK\x03\x04", b"PK\x05\x06")
_ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # the others are unpacked in memory, without limit
# EINVAL: an offset before the start. The others are of the members' names.
_ERRORS_OF_BYTES = {None, errno.EINVAL, errno.EEXIST, errno.ENOTDIR, errno.ENAMETOOLONG}


def extract(archive: Path, into: Path, *, tick: Callable[[int, int], None] = lambda *_: None) -> int:
    """Unpack `archive` into `into`, a folder that does not exist yet. Returns the bytes of its files.

    Args:
        tick: called often with the number of bytes read from the archive, and its size; an exception that it
            raises ends the extraction.

    Raises:
        DataError: a member breaks a rule; the message names both, and the remedy. The caller has to remove
            `into`.
        StorageError: the contents do not fit on the disk, or cannot be written. The caller has to remove
            `into`.
    """
    into.mkdir()
    unpacking = _Unpacking(archive, into)
    with _Watched(archive, tick) as file, _explained(archive, into):
        is_zip = file.read(4) in _ZIP_STARTS  # zipfile would also find one at the end of a damaged tar
        file.seek(0)
        if is_zip:
            unpacking.add_zip(file)
        else:
            unpacking.add_tar(file)
    return unpacking.total_bytes


class _Watched(io.FileIO):
    """A file that reports each read."""

    def __init__(self, path: Path, tick: Callable[[int, int], None]) -> None:
        self._tick, self._size_bytes = tick, path.stat().st_size
        super().__init__(path)

    def read(self, size: int | None = -1, /) -> bytes:
        self._tick(self.tell(), self._size_bytes)
        return super().read(size)


class _TarMember(tarfile.TarInfo):
    """A header, which the library takes for the end of the archive if it is damaged or cut."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            member = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if len(buf) == tarfile.BLOCKSIZE and not any(buf):  # the end mark
                raise
            raise tarfile.ReadError(f"a header is damaged, or cut ({error})") from error
        if member.size < 0:
            raise tarfile.ReadError(f"the size of a member is {member.size}")
        if not member.isreg() and member.size > _HEADER_BYTES:  # it would be read into memory
            raise tarfile.ReadError(f"the headers of a member are longer than {_HEADER_BYTES} bytes")
        return member


class _Unpacking:
    """Applies the rules to one member after another."""

    def __init__(self, archive: Path, into: Path) -> None:
        self._archive, self._archive_bytes = archive, archive.stat().st_size
        self._into, self._free_bytes = into, shutil.disk_usage(into).free
        self._members = self.total_bytes = 0

    def add_tar(self, file: _Watched) -> None:
        with tarfile.open(fileobj=file, tarinfo=_TarMember, errors="surrogateescape") as archive:
            while (member := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # it keeps every header: gigabytes
                self._check(member.name, member.size, is_plain=member.isreg() or member.isdir())
                self._write(member.name, archive.extractfile(member), member.mode)
            # To the end, where gzip and xz store their checksum.
            while padding := archive.fileobj.read(_CHUNK_BYTES):
                if padding.strip(b"\0"):
                    raise tarfile.ReadError("its last member is followed by data that is not a member")

    def add_zip(self, file: _Watched) -> None:
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                name, mode = member.filename, member.external_attr >> 16
                is_plain = member.is_dir() or stat.S_IFMT(mode) in (0, stat.S_IFREG)
                self._check(name, member.file_size, is_plain=is_plain)
                if member.compress_type not in _ZIP_METHODS:
                    raise self._refusal(name, f"it is compressed with method {member.compress_type} of zip")
                self._write(name, None if member.is_dir() else archive.open(member), mode)

    def _write(self, name: str, content: IO[bytes] | None, mode: int) -> None:
        """Write a regular file, or a folder, which others may read; nothing is overwritten.

        Its time is the current one: with an older one, the cleaner of a scratch disk would remove it. Python
        3.11.2 of Debian has no filters to extract with.
        """
        path = self._into / name
        if content is None:
            path.mkdir(parents=True, exist_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with content, path.open("xb") as file:
            shutil.copyfileobj(content, file, _CHUNK_BYTES)
        path.chmod(0o755 if mode & 0o100 else 0o644)

    def _check(self, name: str, size_bytes: int, *, is_plain: bool) -> None:
        """Apply the rules to the next member."""
        self._members += 1
        self.total_bytes += size_bytes
        total_bytes, ratio = self.total_bytes, self.total_bytes / self._archive_bytes
        if not is_plain:
            raise self._refusal(name, "it is neither a file nor a folder")
        if name.startswith("/") or ".." in name.split("/"):
            raise self._refusal(name, "its path is absolute, or contains '..'")
        if self._members > MOST_MEMBERS:
            raise self._refusal(name, f"it has more than {MOST_MEMBERS} members")
        if total_bytes > self._free_bytes:
            raise StorageError(
                f"{self._archive.name} does not fit: unpacked it takes at least {total_bytes} bytes, "
                f"{self._free_bytes} were free at {self._into.parent}.\n"
                "Free space there, or store the data elsewhere."
            )
        if total_bytes > RATIO_FROM_BYTES and ratio > MOST_RATIO:
            rates = f"{total_bytes} bytes from {self._archive_bytes} are {ratio:.0f} : 1"
            raise self._refusal(name, f"{rates}, the limit is {MOST_RATIO:g} : 1")

    def _refusal(self, name: str, rule: str) -> DataError:
        shown = repr(name if len(name) <= 200 else name[:200] + "…")
        return DataError(
            f"{self._archive.name} is not unpacked: {shown}: {rule}.\n"
            "Pack it again, or unpack it yourself and use the folder as the URI."
        )


@contextmanager
def _explained(archive: Path, into: Path) -> Iterator[None]:
    """Turn errors about damaged bytes into a DataError: the libraries raise nearly any for them."""
    try:
        yield
    except (ClusterTrainError, RunStopped):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno not in _ERRORS_OF_BYTES:
            raise refused(into, "written", error) from error
        raise DataError(
            f"{archive.name} cannot be unpacked: {shortened(str(error), 350) or type(error).__name__}.\n"
            "Remove extract if it is no tar, tar.gz, tar.bz2, tar.xz or zip. A sha256 shows damage."
        ) from error
