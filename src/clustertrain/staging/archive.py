"""Unpacks tar, tar.gz, tar.bz2, tar.xz and zip: only regular files and folders.

The library's extraction is not used, because its filters were bypassed several times. Here the name of a
member is checked and its bytes are copied to a new file. Links, devices and everything else are refused, so
no name can lead out of the folder. Modes are always 0644 and 0755.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import hashlib
import lzma
import shutil
import stat
import struct
import tarfile
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

from clustertrain.errors import DataError, StorageError
from clustertrain.staging.folder_digest import Contents
from clustertrain.storage.posix import refused

# The limits of an unpacked archive. The free space of the disk is another limit.
MOST_MEMBERS = 20_000_000
MOST_BYTES = 64 << 40
MOST_RATIO = 200.0  # unpacked bytes per byte of archive, once more than 256 MiB are unpacked

_CHUNK_BYTES = 1 << 20
_TAR_BLOCK_BYTES = 512
_DIRECTORY_BYTES = 256 << 20  # of a zip, which zipfile reads into memory: some two million members
_TAIL_BYTES = 1 << 17  # of a zip, with its end record and a comment; zipfile reads it without a size
_PADDING_BYTES = 64 << 20  # zeros after the end mark; tar pads to its record size
_HEADER_BYTES = 1 << 20  # all headers of one member of a tar, which are kept in memory; real ones are small
_NAME_BYTES = 255
_PATH_BYTES = 3000
_DEPTH = 100
# Control characters, bytes that are not UTF-8 (lone surrogates), separators of lines. Names of files have the
# spaces and joiners of other scripts and of macOS.
_UNPRINTABLE = {"Cc", "Cs", "Zl", "Zp"}
_UNPACK = "If the archive is as intended, unpack it yourself"
_RATIO_FROM_BYTES = 256 << 20  # below this size a high ratio does no harm


@dataclass(frozen=True)
class _Member:
    """`size_bytes` is the size in the archive's header; the bytes from `open` are counted as well."""

    name: str
    size_bytes: int
    is_folder: bool
    refusal: str | None  # the reason why its type is refused
    open: Callable[[], AbstractContextManager[IO[bytes]]]


def extract(archive: Path, into: Path, *, tick: Callable[[int, int], None] = lambda *_: None) -> Contents:
    """Unpack `archive` into `into`, a folder that does not exist yet. Returns the contents of the folder.

    Args:
        tick: called often with the number of bytes read from the archive, and its size; an exception that it
            raises ends the extraction.

    Raises:
        DataError: a member breaks a rule; the message names both, and the remedy. The caller has to remove
            `into`.
        StorageError: the contents do not fit on the disk, or cannot be written. The caller has to remove
            `into`.
    """
    unpacking = _Unpacking(archive, into)
    into.mkdir()
    with archive.open("rb") as file, unpacking.explained():

        def used() -> None:
            tick(file.tell(), unpacking.archive_bytes)

        for member in _members(file, archive):
            unpacking.add(member, used)
            used()
        return unpacking.contents


class _Unpacking:
    """Applies the rules to one member after another."""

    def __init__(self, archive: Path, into: Path) -> None:
        self._archive, self.archive_bytes = archive, archive.stat().st_size
        self._into, self._free_bytes = into, shutil.disk_usage(into.parent).free
        self._members = self._written_bytes = 0
        self.contents = Contents()

    def add(self, member: _Member, tick: Callable[[], None]) -> None:
        self._members += 1
        if self._members > MOST_MEMBERS:
            raise self._refusal(member, f"it has more than {MOST_MEMBERS} members", _UNPACK)
        if member.refusal is not None:
            remedy = "Pack it again with plain files and folders only, or unpack it yourself"
            raise self._refusal(member, member.refusal, remedy)
        if (wrong := wrong_name(member.name)) is not None:
            remedy = "Pack it again with plain relative names, or unpack it yourself"
            raise self._refusal(member, wrong, remedy)
        path = self._into.joinpath(*(part for part in member.name.split("/") if part not in ("", ".")))
        try:
            if member.is_folder:
                self._make_folder(path)
                return
            self._make_folder(path.parent)
            self._check_growth(member, member.size_bytes)
            with path.open("xb") as target:
                path.chmod(0o644)
                sha256 = self._copy(member, target, tick)
            name = path.relative_to(self._into).as_posix()
            self.contents = self.contents.plus(name, member.size_bytes, sha256)
        except (FileExistsError, NotADirectoryError):
            what = "another member has the same name, and nothing is overwritten"
            remedy = "Pack it again without duplicates, or unpack it yourself"
            raise self._refusal(member, what, remedy) from None

    def _make_folder(self, path: Path) -> None:
        if path == self._into or path.is_dir():
            return
        self._make_folder(path.parent)
        path.mkdir()
        path.chmod(path.stat().st_mode & stat.S_ISGID | 0o755)  # a quota may count the files of a group

    def _copy(self, member: _Member, target: IO[bytes], tick: Callable[[], None]) -> str:
        copied_bytes, hashed = 0, hashlib.sha256()
        with member.open() as source:
            while chunk := source.read(_CHUNK_BYTES):
                self._check_growth(member, len(chunk))
                target.write(chunk)
                hashed.update(chunk)
                copied_bytes += len(chunk)
                self._written_bytes += len(chunk)
                tick()
        if copied_bytes != member.size_bytes:
            what = f"it contains {copied_bytes} bytes, but its header gives {member.size_bytes}"
            raise self._refusal(member, what, "Fetch or pack the archive again, or unpack it yourself")
        return hashed.hexdigest()

    def _check_growth(self, member: _Member, more_bytes: int) -> None:
        total = self._written_bytes + more_bytes
        if total > MOST_BYTES:
            what = f"the unpacked files would take {total} bytes, the limit is {MOST_BYTES}"
            raise self._refusal(member, what, _UNPACK)
        if total > self._free_bytes:
            raise StorageError(
                f"{self._archive.name} does not fit: unpacked it takes at least {total} bytes, "
                f"{self._free_bytes} were free at {self._into.parent}.\n"
                "Free space there, or store the data elsewhere."
            )
        ratio = total / max(1, self.archive_bytes)
        if total > _RATIO_FROM_BYTES and ratio > MOST_RATIO:
            rates = f"{total} bytes from {self.archive_bytes} are {ratio:.0f} : 1"
            what = f"{rates}, the limit is {MOST_RATIO:g} : 1"
            raise self._refusal(member, what, _UNPACK)

    def _refusal(self, member: _Member, rule: str, remedy: str) -> DataError:
        return DataError(
            f"{self._archive.name} is not unpacked: {_shown(member.name)}: {rule}.\n"
            f"{remedy} and use the folder as the URI."
        )

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turns the libraries' errors about damaged bytes into a DataError."""
        try:
            yield
        except (
            OSError,
            tarfile.TarError,
            zipfile.BadZipFile,
            zlib.error,
            lzma.LZMAError,
            EOFError,
            ValueError,
            RuntimeError,  # also NotImplementedError
            LookupError,  # a header that was cut, or an unknown encoding
            ArithmeticError,
            struct.error,
        ) as error:
            # EINVAL: an offset before the start of the archive
            if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
                raise refused(self._into, "written", error) from error
            raise DataError(
                f"{self._archive.name} cannot be unpacked: {error or type(error).__name__}.\n"
                "Fetch or pack it again; a sha256 in the job file shows whether the download was damaged."
            ) from error


def wrong_name(name: str) -> str | None:
    """The rule that a member's name breaks, if any. '.' and double slashes are harmless and common."""
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


def _shown(name: str) -> str:
    return repr(name if len(name) <= 200 else name[:200] + "…")


def _members(file: IO[bytes], archive: Path) -> Iterator[_Member]:
    """The members of an archive in its order. The format is detected from the first bytes, not from the
    name."""
    head = file.read(6)
    file.seek(0)
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        yield from _zip_members(file)
        return
    stream: Any = file
    if head[:2] == b"\x1f\x8b":
        stream = gzip.GzipFile(fileobj=file)
    elif head[:3] == b"BZh":
        stream = bz2.BZ2File(file)
    elif head == b"\xfd7zXZ\x00":
        stream = lzma.LZMAFile(file)  # noqa: SIM115  the caller owns `file`
    reader = _BoundedReader(stream, _HEADER_BYTES, "the headers of one of its members are")
    try:
        tar = tarfile.TarFile(fileobj=reader, errors="surrogateescape")  # type: ignore[arg-type]
    except tarfile.ReadError as error:
        raise DataError(
            f"{archive.name} is not a tar, tar.gz, tar.bz2, tar.xz or zip: it starts with {head!r}.\n"
            "Remove extract to use the file as it is, or pack it as one of these."
        ) from error
    with tar:
        yield from _tar_members(tar, reader)


def _zip_members(file: IO[bytes]) -> Iterator[_Member]:
    reader = _BoundedReader(file, _DIRECTORY_BYTES, "its directory is")
    with zipfile.ZipFile(reader) as archive:
        reader.left_bytes = None
        for info in archive.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            refusal = None
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                refusal = "it is a link" if kind == stat.S_IFLNK else "it is neither a file nor a folder"
            elif info.flag_bits & 0x1:
                refusal = "it is encrypted"
            elif info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                # The library unpacks a read of bzip2 or LZMA in memory as a whole: 1 MiB becomes gigabytes.
                refusal = f"it is compressed with method {info.compress_type} of zip, not with deflate"
            # orig_filename: the library cuts a name at its first NUL, which would hide the rest of it
            name = info.orig_filename
            yield _Member(name, info.file_size, name.endswith("/"), refusal, partial(archive.open, info))


def _tar_members(archive: tarfile.TarFile, reader: _BoundedReader) -> Iterator[_Member]:
    while (info := archive.next()) is not None:
        reader.left_bytes = None
        archive.members.clear()  # type: ignore[attr-defined]  # it keeps every header: gigabytes
        refusal = None
        if info.issym() or info.islnk():
            refusal = "it is a link"
        elif not (info.isreg() or info.isdir()):
            refusal = "it is neither a file nor a folder"
        opened = cast(Callable[[], IO[bytes]], partial(archive.extractfile, info))
        yield _Member(info.name, info.size, info.isdir(), refusal, opened)
        reader.left_bytes = _HEADER_BYTES
    reader.left_bytes = None
    _check_end(reader)


def _check_end(reader: _BoundedReader) -> None:
    """Check the end of a tar: the library ends silently if it is cut between two members or a header is
    damaged.

    The last block that was read distinguishes a correct end from these two. Nothing is read twice: a seek
    back in a compressed stream would unpack it from the start.
    """
    if len(reader.last_read) < _TAR_BLOCK_BYTES:
        raise ValueError("its end mark is missing: it was cut")
    padding, padding_bytes = reader.last_read, 0
    while padding:  # to the end, where gzip and xz store their checksum
        padding_bytes += len(padding)
        if any(padding) or padding_bytes > _PADDING_BYTES:
            raise ValueError("its last member is followed by data that is not a member")
        padding = reader.read(_CHUNK_BYTES)


class _BoundedReader:
    """Bounds the headers of a member, and the directory of a zip. tarfile and zipfile read as many bytes into
    memory as a size field requires, and a chain of sparse headers to its end."""

    def __init__(self, stream: Any, most_bytes: int, what: str) -> None:
        self._stream = stream
        self._most_bytes = most_bytes
        self._what = what
        self.seek, self.tell, self.seekable = stream.seek, stream.tell, stream.seekable
        self.last_read = b""
        self.left_bytes: int | None = most_bytes  # None while the bytes of a member are read

    def read(self, size: int = _TAIL_BYTES) -> bytes:
        most_bytes = _CHUNK_BYTES if self.left_bytes is None else self.left_bytes
        if not 0 <= size <= most_bytes:
            raise ValueError(f"{self._what} longer than {self._most_bytes} bytes, or negative")
        self.last_read = self._stream.read(size)
        if self.left_bytes is not None:
            self.left_bytes -= len(self.last_read)
        return self.last_read
