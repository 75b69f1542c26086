"""The code of a job at its submission, so that a requeue next week runs the same code.

One tar.gz of all folders of `code`, the same on every machine: sorted, without owners and times. It contains
files and folders, and whether a file is executable; a link is packed as the file that it points to. Version
control, virtual environments, caches, the runs themselves and data sets that the job names are left out.
shutil.make_archive also packs times and owners; `git archive` packs only committed files.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import os
import re
import stat
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from clustertrain.errors import JobError, StorageError
from clustertrain.job.code_folders import is_own, places
from clustertrain.job.file import record_of
from clustertrain.job.model import Job
from clustertrain.node.regular_file import read_file
from clustertrain.run_files.records.provenance import CodeFile
from clustertrain.run_files.run_address import run_names
from clustertrain.storage import Location, local_path, open_store
from clustertrain.storage.posix import refused

MOST_BYTES = 100_000_000
MOST_FILES = 20_000
_LEFT_OUT = {
    *(".git", ".hg", ".svn", "__pycache__", ".venv", "node_modules", ".ipynb_checkpoints"),
    *(".cache", ".eggs", ".hypothesis", ".mypy_cache", ".nox", ".pytest_cache", ".ruff_cache", ".tox"),
}
# They mark a virtual environment and a cache, whatever the folder's name is.
_MARKS_OF_LEFT_OUT = ("pyvenv.cfg", "CACHEDIR.TAG")
_RUN = 0o100
# What code_files leaves out: hidden files, what people read, and what a terminal or a scheduler writes.
_NOT_COMPARED = re.compile(r"\..*|.*\.(md|rst|log|out|err)")
_SOURCE_CODE = (".py", ".pyx", ".ipynb", ".sh", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp")
_MOST_DIGESTED_BYTES = 10_000_000
_COMPARED_WITHIN_S = 2.0
_JOB_FILE = re.compile(rb"^(task|function|script|module):", re.MULTILINE)

FileId = tuple[int, int]


@dataclass(frozen=True)
class Snapshot:
    """A job and its code.

    `digest` is computed from their content: 16 hex digits, equal on every machine and for every version of
    the compression library.
    """

    job_yaml: bytes
    code: bytes
    digest: str


@dataclass(frozen=True)
class CodeEntry:
    """A file or folder; `name` is relative to the code, with '/' between its parts."""

    name: str
    path: Path
    is_folder: bool
    may_run: bool = False
    size_bytes: int = 0
    changed_ns: int = 0


@dataclass(frozen=True)
class UserCode:
    """The code of a job, and what may lie in its folders and is no code: data sets and runs.

    Attributes:
        folders: of the code.
        data: the local sources of data sets, by name.
        storage: of the runs.
    """

    folders: tuple[str, ...]
    data: Mapping[str, Path]
    storage: Location

    @classmethod
    def of(cls, job: Job) -> UserCode:
        found = {name: _local(Location(entry.uri)) for name, entry in job.data.items()}
        local = {name: path for name, path in found.items() if path is not None}
        return cls(job.code, local, job.storage.location)


def take_snapshot(job: Job, outputs: Iterable[Path] = ()) -> Snapshot:
    """Pack the job, and its code as an archive.

    Args:
        outputs: files that are not code: what a scheduler has written for earlier jobs.

    Raises:
        JobError: `code` is not a folder.
        StorageError: the code cannot be read, is too large, or has a name that no archive may hold.
    """
    job_yaml, archive = record_of(job).encode(), pack(UserCode.of(job), outputs)
    hashed = hashlib.sha256(f"{len(job_yaml)}\n".encode() + job_yaml)
    hashed.update(archive)
    return Snapshot(job_yaml, compressed(archive), hashed.hexdigest()[:16])


def pack(code: UserCode, outputs: Iterable[Path] = ()) -> memoryview:
    """Return the code as an archive; arguments and errors as for `take_snapshot`."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8") as archive:
        for entry in _entries_within_limits(code, outputs):
            data = b"" if entry.is_folder else _read(entry.path)
            member = tarfile.TarInfo(entry.name)
            member.type = tarfile.DIRTYPE if entry.is_folder else tarfile.REGTYPE
            member.mode = 0o755 if entry.is_folder or entry.may_run else 0o644
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return packed.getbuffer()


def compressed(archive: memoryview) -> bytes:
    return gzip.compress(archive, 6, mtime=0)


def code_files(code: UserCode) -> dict[str, CodeFile]:
    """Return the files of the code and the local files of `data`, for a later start that compares them.

    The result is empty if there are more than a snapshot may have, or they cannot be read within two seconds.
    Job files are left out: their changes are reported by key.
    """
    found: dict[str, CodeFile] = {}
    total_bytes, ends_s = 0, time.monotonic() + _COMPARED_WITHIN_S
    try:
        for name, path in code.data.items():
            if path.is_file():
                found[f"data.{name}"] = CodeFile(_digest(path, path.stat().st_size))
        for entry in entries_of(code.folders, _NOT_COMPARED, ids_of_no_code(code)):
            total_bytes += entry.size_bytes if entry.size_bytes <= _MOST_DIGESTED_BYTES else 0
            if time.monotonic() > ends_s or total_bytes > MOST_BYTES or len(found) >= MOST_FILES:
                return {}
            if entry.is_folder or not entry.size_bytes or _is_job_file(entry):
                continue
            changed_at = None if entry.name.endswith(_SOURCE_CODE) else entry.path.stat().st_mtime
            found[entry.name] = CodeFile(_digest(entry.path, entry.size_bytes), changed_at)
    except (JobError, StorageError, OSError):
        return {}
    return found


def _digest(path: Path, size_bytes: int) -> str:
    """Return a digest of the content; of a large file, which takes long to read, only its size."""
    if size_bytes > _MOST_DIGESTED_BYTES:
        return f"{size_bytes} bytes"
    return hashlib.sha256(_read(path)).hexdigest()[:16]


def _is_job_file(entry: CodeEntry) -> bool:
    return entry.name.endswith((".yaml", ".yml")) and _JOB_FILE.search(_read(entry.path)) is not None


def _entries_within_limits(code: UserCode, outputs: Iterable[Path]) -> list[CodeEntry]:
    entries, total_bytes = [], 0
    for entry in entries_of(code.folders, no_code=ids_of_no_code(code, outputs)):
        entries.append(entry)
        total_bytes += entry.size_bytes
        if total_bytes > MOST_BYTES or len(entries) > MOST_FILES:
            raise StorageError(
                f"{' and '.join(code.folders)}: more than {MOST_BYTES // 10**6} MB or {MOST_FILES} files and "
                "folders are not sent with a job.\nName data sets under `data`, move files that are not code "
                "(`du -a | sort -n` lists the largest last), or name a smaller folder as `code`."
            )
    return entries


def entries_of(
    folders: Sequence[str], left_out: re.Pattern[str] | None = None, no_code: Set[FileId] = frozenset()
) -> Iterator[CodeEntry]:
    """Yield the files and folders of the code, as `take_snapshot` packs them.

    Args:
        no_code: files and folders that are left out.

    Raises:
        JobError: one of `folders` does not exist.
        StorageError: one cannot be read.
    """
    by_place = dict(zip(places(folders), folders, strict=True))  # one that is named twice is packed once
    for place, name in by_place.items():
        folder = Path(name)
        if not folder.is_dir():
            raise JobError(
                f"code: {folder} is not an existing folder.\nName the folder that holds your code."
            )
        if place == ".":
            yield from _entries(folder, left_out, no_code)
        elif is_own(place):
            yield CodeEntry(place, folder, is_folder=True)
            yield from _entries(folder, left_out, no_code, f"{place}/")


def _entries(
    folder: Path, left_out: re.Pattern[str] | None, no_code: Set[FileId], prefix: str = ""
) -> Iterator[CodeEntry]:
    """Yield the files and folders below a folder, in the same order on every machine."""
    no_code = no_code | {_id(folder.stat())}  # a link to a folder above it would have no end
    for path in _listed(folder):
        try:
            found = path.stat()
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP):
                continue  # a link to nothing or to itself, or a file that was just removed
            raise refused(path, "read", error) from error
        name = f"{prefix}{path.name}"
        if _id(found) in no_code:
            continue
        if stat.S_ISDIR(found.st_mode) and not _is_left_out(path):
            yield CodeEntry(name, path, is_folder=True)
            yield from _entries(path, left_out, no_code, f"{name}/")
        elif stat.S_ISREG(found.st_mode) and not (left_out and left_out.fullmatch(path.name)):
            may_run = bool(found.st_mode & _RUN)
            yield CodeEntry(name, path, False, may_run, found.st_size, found.st_mtime_ns)


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise refused(folder, "listed", error) from error


def _is_left_out(folder: Path) -> bool:
    return folder.name in _LEFT_OUT or any(os.path.exists(folder / mark) for mark in _MARKS_OF_LEFT_OUT)


def _id(found: os.stat_result) -> FileId:
    return found.st_dev, found.st_ino


def ids_of_no_code(code: UserCode, outputs: Iterable[Path] = ()) -> set[FileId]:
    """Return the runs, data sets and outputs of the job, by inode: links to them are found as well."""
    paths = [*outputs, *code.data.values()]
    if (storage := _local(code.storage)) is not None:
        names = run_names(open_store(code.storage), skip=lambda error: None)
        paths += [storage, *(storage / name for name in names)]
    found = set()
    for path in paths:
        with suppress(OSError):  # it does not exist, or this user may not see it
            found.add(_id(path.stat()))
    return found


def _local(location: Location) -> Path | None:
    is_local = "://" not in location.uri or location.uri.lower().startswith("file://")
    return local_path(location.uri, what="place") if is_local else None


def _read(path: Path) -> bytes:
    try:
        return read_file(path)
    except OSError as error:
        raise refused(path, "read", error) from error
