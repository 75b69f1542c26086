"""Unpacks tar, tar.gz, tar.bz2, tar.xz and zip: regular files and folders only, and nothing by surprise.

The library's own extraction is not used: its filters were bypassed again and again. Here a member is a name
that is checked and bytes that are copied to a new file; links, devices and everything else are refused, so
no name can lead out of the folder. Modes are 0644 and 0755 whatever the archive says.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import hashlib
import lzma
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from clustertrain.errors import DataError, StorageError
from clustertrain.staging.folder_digest import Contents
from clustertrain.storage.posix import refused

_CHUNK_BYTES = 1 << 20
_TAR_BLOCK_BYTES = 512
_PADDING_BYTES = 64 << 20  # zeros after the end mark; tar pads to its record size
_HEADER_BYTES = 16 << 20  # a tar header is read in one piece; none that is honest comes near this
_NAME_BYTES = 255
_PATH_BYTES = 3000
_DEPTH = 100
_UNPACK = "If it is meant to be so, unpack it yourself"
_RATIO_FROM_BYTES = 256 << 20  # a small archive of zeros harms nobody


@dataclass(frozen=True)
class Limits:
    """What an archive may grow to. The free space of the disk is a limit of its own."""

    members: int = 20_000_000
    total_bytes: int = 64 << 40
    ratio: float = 200.0  # unpacked bytes per byte of archive, once more than 256 MiB are unpacked


@dataclass(frozen=True)
class _Member:
    """`size_bytes` is what the archive says; what comes out of `open` is counted as well."""

    name: str
    size_bytes: int
    is_folder: bool
    refusal: str | None  # why its kind may not be unpacked
    open: Callable[[], AbstractContextManager[IO[bytes]]]


def extract(
    archive: Path,
    into: Path,
    *,
    limits: Limits | None = None,
    tick: Callable[[int, int], None] = lambda *_: None,
) -> Contents:
    """Unpack `archive` into `into`, a folder that does not exist yet. Returns what it holds then.

    Args:
        tick: called often with the bytes of the archive that are used up, and its size; what it raises
            ends the extraction.

    Raises:
        DataError: names the member, the rule it breaks, and the remedy. What was unpacked so far is left
            in `into`, for the caller to remove.
        StorageError: it does not fit on the disk, or cannot be written.
    """
    unpacking = _Unpacking(archive, into, limits or Limits())
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

    def __init__(self, archive: Path, into: Path, limits: Limits) -> None:
        self._archive = archive
        self._into = into
        self._limits = limits
        self._free_bytes = shutil.disk_usage(into.parent).free
        self._members = 0
        self.archive_bytes = archive.stat().st_size
        self._written_bytes = 0
        self.contents = Contents()

    def add(self, member: _Member, tick: Callable[[], None]) -> None:
        self._members += 1
        if self._members > self._limits.members:
            raise self._refusal(member, f"it holds more than {self._limits.members} members", _UNPACK)
        if member.refusal is not None:
            raise self._refusal(
                member, member.refusal, "Pack it again with files and folders alone, or unpack it yourself"
            )
        if (wrong := wrong_name(member.name)) is not None:
            raise self._refusal(
                member, wrong, "Pack it again with plain relative names, or unpack it yourself"
            )
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
            raise self._refusal(
                member,
                "its name is there already, and nothing is overwritten",
                "Pack it again without doubles, or unpack it yourself",
            ) from None

    def _make_folder(self, path: Path) -> None:
        if path == self._into or path.is_dir():
            return
        self._make_folder(path.parent)
        path.mkdir()
        path.chmod(0o755)

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
            what = f"{copied_bytes} bytes came out, its header says {member.size_bytes}"
            raise self._refusal(member, what, "Fetch or pack the archive again, or unpack it yourself")
        return hashed.hexdigest()

    def _check_growth(self, member: _Member, more_bytes: int) -> None:
        total = self._written_bytes + more_bytes
        if total > self._limits.total_bytes:
            raise self._refusal(
                member,
                f"the whole would take {total} bytes, the limit is {self._limits.total_bytes}",
                _UNPACK,
            )
        if total > self._free_bytes:
            raise StorageError(
                f"{self._archive.name} does not fit: unpacked it takes {total} bytes or more, "
                f"{self._free_bytes} were free at {self._into.parent}.\n"
                "Free space there, or keep the data elsewhere."
            )
        ratio = total / max(1, self.archive_bytes)
        if total > _RATIO_FROM_BYTES and ratio > self._limits.ratio:
            what = (
                f"{total} bytes of {self.archive_bytes} are {ratio:.0f} : 1, over {self._limits.ratio:g} : 1"
            )
            raise self._refusal(member, what, _UNPACK)

    def _refusal(self, member: _Member, rule: str, remedy: str) -> DataError:
        return DataError(
            f"{self._archive.name} is not unpacked: {_shown(member.name)}: {rule}.\n"
            f"{remedy} and give the folder."
        )

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turns what the libraries say of damaged bytes into an error of ours."""
        try:
            yield
        except OSError as error:
            if error.errno not in (None, errno.EINVAL):  # EINVAL: it names a place before its own beginning
                raise refused(self._into, "written", error) from error
            raise self._damaged(error) from error
        except (
            tarfile.TarError,
            zipfile.BadZipFile,
            zlib.error,
            lzma.LZMAError,
            EOFError,
            NotImplementedError,
            ValueError,
            RuntimeError,
        ) as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> DataError:
        return DataError(
            f"{self._archive.name} cannot be unpacked: {error or type(error).__name__}.\n"
            "Fetch or pack it again; a sha256 in the job tells a damaged download from a damaged archive."
        )


def wrong_name(name: str) -> str | None:
    """The rule that a member's name breaks, if any. '.' and doubled slashes are harmless, and common."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/"):
        return "its path is absolute"
    if ".." in parts:
        return "its path holds '..'"
    if "\\" in name or (parts and len(parts[0]) == 2 and parts[0][1] == ":"):
        return "its path is one of another system"
    if not name.isprintable():  # control characters, and bytes that are no UTF-8 (lone surrogates)
        return "its name holds characters that cannot be printed, or is not UTF-8"
    encoded = [len(part.encode()) for part in parts]
    if (
        max(encoded, default=0) > _NAME_BYTES
        or sum(encoded) + len(encoded) > _PATH_BYTES
        or len(parts) > _DEPTH
    ):
        return f"its path has over {_DEPTH} parts, {_NAME_BYTES} bytes in one, or {_PATH_BYTES} bytes in all"
    return None


def _shown(name: str) -> str:
    return repr(name if len(name) <= 200 else name[:200] + "…")


def _members(file: IO[bytes], archive: Path) -> Iterator[_Member]:
    """The members of an archive in its order; what it is is told from its first bytes, not from its name."""
    head = file.read(6)
    file.seek(0)
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        yield from _zip_members(file)
    elif head[:2] == b"\x1f\x8b":
        yield from _tar_members(gzip.GzipFile(fileobj=file))
    elif head[:3] == b"BZh":
        yield from _tar_members(bz2.BZ2File(file))
    elif head == b"\xfd7zXZ\x00":
        yield from _tar_members(lzma.LZMAFile(file))  # noqa: SIM115  it opens nothing: `file` is the caller's
    elif _is_plain_tar(file):
        yield from _tar_members(file)
    else:
        raise DataError(
            f"{archive.name} is not a tar, tar.gz, tar.bz2, tar.xz or zip: it begins with {head!r}.\n"
            "Leave extract out to use the file as it is, or pack it as one of these."
        )


def _is_plain_tar(file: IO[bytes]) -> bool:
    """Whether a file begins like a plain tar: its first header has a good checksum, or it is empty."""
    block = file.read(_TAR_BLOCK_BYTES)
    file.seek(0)
    if len(block) == _TAR_BLOCK_BYTES and not any(block):
        return True
    try:
        tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.TarError:
        return False
    return True


def _zip_members(file: IO[bytes]) -> Iterator[_Member]:
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            refusal = None
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                refusal = "it is a link" if kind == stat.S_IFLNK else "it is neither a file nor a folder"
            elif info.flag_bits & 0x1:
                refusal = "it is encrypted"
            # orig_filename: the library cuts a name at its first NUL, which would hide a part of it
            yield _Member(
                info.orig_filename,
                info.file_size,
                info.orig_filename.endswith("/"),
                refusal,
                partial(archive.open, info),
            )


def _tar_members(stream: Any) -> Iterator[_Member]:
    reader = _BoundedReader(stream)
    with tarfile.open(fileobj=reader, mode="r:", errors="surrogateescape") as archive:  # type: ignore[call-overload]
        while (info := archive.next()) is not None:
            archive.members.clear()  # it keeps every header otherwise: gigabytes for a million files
            refusal = None
            if info.issym() or info.islnk():
                refusal = "it is a link"
            elif not (info.isreg() or info.isdir()):
                refusal = "it is neither a file nor a folder"
            yield _Member(info.name, info.size, info.isdir(), refusal, partial(_file_in, archive, info))
        _check_end(reader)


def _file_in(archive: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    file = archive.extractfile(info)
    if file is None:
        raise ValueError(f"{info.name!r} has no bytes")
    return file


def _check_end(reader: _BoundedReader) -> None:
    """The library ends silently where a tar is cut between two members, or the next header is damaged.

    The last block it read tells the three ends apart. Nothing is read twice: going back in a compressed
    stream means to unpack it from the start.
    """
    if len(reader.last_read) < _TAR_BLOCK_BYTES:
        raise ValueError("it ends without its end mark, as one that was cut does")
    padding, padding_bytes = reader.last_read, 0
    while padding:  # to the very end, where gzip and xz keep their checksum
        padding_bytes += len(padding)
        if any(padding) or padding_bytes > _PADDING_BYTES:
            raise ValueError("after its last member comes something that is no member")
        padding = reader.read(_CHUNK_BYTES)


class _BoundedReader:
    """Refuses to read a header of gigabytes into memory, which tarfile does where a size says so."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.seek, self.tell = stream.seek, stream.tell
        self.last_read = b""

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _HEADER_BYTES:
            raise ValueError(f"a header of it says that it is {size} bytes long")
        self.last_read = self._stream.read(size)
        return self.last_read
