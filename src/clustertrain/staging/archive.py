"""Unpacks tar, tar.gz, tar.bz2, tar.xz and zip: only regular files and folders, within limits."""

from __future__ import annotations

import errno
import io
import shutil
import stat
import tarfile
import unicodedata
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from clustertrain.errors import ClusterTrainError, DataError, RunStopped, StorageError
from clustertrain.node.units import shortened
from clustertrain.storage.posix import refused

# The limits of an unpacked archive. The free space of the disk is another limit.
MOST_MEMBERS = 20_000_000
MOST_BYTES = 64 << 40
MOST_RATIO = 200.0  # unpacked bytes per byte of archive, once more than 256 MiB are unpacked

_CHUNK_BYTES = 1 << 20
_HEADER_BYTES = 1 << 20  # real ones are small
_PADDING_BYTES = 64 << 20  # zeros after the end mark; tar pads to its record size
_NAME_BYTES = 255
_PATH_BYTES = 3000
_DEPTH = 100
# Control characters, bytes that are not UTF-8 (lone surrogates), separators of lines. Names of files have the
# spaces and joiners of other scripts and of macOS.
_UNPRINTABLE = {"Cc", "Cs", "Zl", "Zp"}
_RATIO_FROM_BYTES = 256 << 20  # below this size a high ratio does no harm
_ZIP_STARTS = (b"PK\x03\x04", b"PK\x05\x06")
_ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # the others are unpacked in memory, without limit
_ERRORS_OF_BYTES = {None, errno.EINVAL, errno.EEXIST, errno.ENOTDIR}  # EINVAL: an offset before the start


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
                self._check(member.name, member.size, is_file=member.isreg(), is_folder=member.isdir())
                self._write(archive, member)
            # To the end, where gzip and xz store their checksum.
            padding_bytes = 0
            while padding := archive.fileobj.read(_CHUNK_BYTES):
                padding_bytes += len(padding)
                if any(padding) or padding_bytes > _PADDING_BYTES:
                    raise tarfile.ReadError("its last member is followed by data that is not a member")

    def _write(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        """Write a regular file or a folder, which others may read.

        Its time is the current one: with an older one, the cleaner of a scratch disk would remove it. Python
        3.11.2 of Debian has no filters to extract with.
        """
        path, content = self._into / member.name, archive.extractfile(member)
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.mkdir(exist_ok=True)
            return
        with content, path.open("xb") as file:
            shutil.copyfileobj(content, file, _CHUNK_BYTES)
        path.chmod(0o755 if member.mode & 0o100 else 0o644)

    def add_zip(self, file: _Watched) -> None:
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                is_file = stat.S_IFMT(member.external_attr >> 16) in (0, stat.S_IFREG)
                # orig_filename: the library cuts a name at its first NUL, which would hide the rest of it
                name = member.orig_filename
                self._check(name, member.file_size, is_file=is_file, is_folder=member.is_dir())
                if member.compress_type not in _ZIP_METHODS:
                    raise self._refusal(name, f"it is compressed with method {member.compress_type} of zip")
                archive.extract(member, self._into)

    def _check(self, name: str, size_bytes: int, *, is_file: bool, is_folder: bool) -> None:
        """Apply the rules to the next member."""
        self._members += 1
        self.total_bytes += size_bytes
        total_bytes, ratio = self.total_bytes, self.total_bytes / self._archive_bytes
        if not (is_file or is_folder):
            raise self._refusal(name, "it is neither a file nor a folder")
        if (wrong := wrong_name(name)) is not None:
            raise self._refusal(name, wrong)
        path = self._into / name
        if not is_folder and (path.exists() or path.parent.is_file()):
            raise self._refusal(name, "another member has the same name, and nothing is overwritten")
        if self._members > MOST_MEMBERS:
            raise self._refusal(name, f"it has more than {MOST_MEMBERS} members")
        if total_bytes > MOST_BYTES:
            what = f"the unpacked files would take {total_bytes} bytes, the limit is {MOST_BYTES}"
            raise self._refusal(name, what)
        if total_bytes > self._free_bytes:
            raise StorageError(
                f"{self._archive.name} does not fit: unpacked it takes at least {total_bytes} bytes, "
                f"{self._free_bytes} were free at {self._into.parent}.\n"
                "Free space there, or store the data elsewhere."
            )
        if total_bytes > _RATIO_FROM_BYTES and ratio > MOST_RATIO:
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


def wrong_name(name: str) -> str | None:
    """Return the rule that a member's name breaks, if any; '.' and double slashes are harmless and common."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/"):
        return "its path is absolute"
    if ".." in parts:
        return "its path contains '..'"
    if "\\" in name or (parts and len(parts[0]) == 2 and parts[0][1] == ":"):
        return "its path is a Windows path"
    if not name.isprintable() and _UNPRINTABLE.intersection(map(unicodedata.category, name)):
        return "its name has unprintable characters, or is not UTF-8"
    encoded = [len(part.encode()) for part in parts]
    if (
        max(encoded, default=0) > _NAME_BYTES
        or sum(encoded) + len(encoded) > _PATH_BYTES
        or len(parts) > _DEPTH
    ):
        return (
            f"its path has over {_DEPTH} parts, {_NAME_BYTES} bytes in a part, or {_PATH_BYTES} bytes in all"
        )
    return None
