"""The folder in which the user's code of a submitted run works, and the files that code leaves beside itself.

A node removes the code that it has unpacked at the end of the job, and what a program wrote to a relative
path would go with it. So the driver copies the files of the code to a folder of the run before the workers
start, and they work there. If the nodes share no folder, they work in the unpacked code.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from clustertrain.errors import JobError, StorageError
from clustertrain.job.code_folders import places
from clustertrain.job.model import Job
from clustertrain.node.regular_file import read_file
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.records.provenance import CopiedCode, LeftFiles
from clustertrain.run_files.snapshot import CodeEntry, FileId, UserCode, entries_of, ids_of_no_code
from clustertrain.storage.posix import refused

_COPIES_AT_ONCE = 16
_LOOK_S = 1.0  # a folder of the code may be a home folder
_MOST_NAMES = 5


def working_folder(run: RunDir, job: Job) -> Path | None:
    """Return the run's copy of the first folder of the code, or None if the nodes share no folder."""
    folder = run.store.local_folder(run.work_key)
    return None if folder is None else folder / places(job.code)[0]


def copy_code(run: RunDir, folders: Sequence[str], echo: Callable[[str], None]) -> None:
    """Copy the files of the code that have changed since the last copy.

    Files that the run itself has written stay as they are.

    Raises:
        StorageError: a file cannot be read or written.
    """
    work = run.store.local_folder(run.work_key)
    if work is None:
        return
    before = run.copied_code.read() if work.exists() else None
    versions = dict(before.versions) if before is not None else {}
    kept: list[str] = []

    def copy(entry: CodeEntry) -> None:
        target, data = work / entry.name, read_file(entry.path)
        version = hashlib.sha256(data).hexdigest()
        if before is not None and entry.name not in before.versions and target.exists():
            kept.append(entry.name)
        elif versions.get(entry.name) != version:
            run.store.write_atomic(f"{run.work_key}/{entry.name}", data)
            target.chmod(0o755 if entry.may_run else 0o644)
            versions[entry.name] = version

    entries = list(entries_of(folders))
    try:
        for folder in (work, *(work / entry.name for entry in entries if entry.is_folder)):
            folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(_COPIES_AT_ONCE) as pool:
            list(pool.map(copy, (entry for entry in entries if not entry.is_folder)))
    except OSError as error:
        raise refused(Path(error.filename or work), "copied", error) from error
    run.copied_code.write(CopiedCode(versions))
    if kept:
        names = _text(sorted(kept))
        echo(f"files of the code are not copied to {work}, where the run has written its own: {names}")


def files_beside_code(folders: Sequence[str], no_code: Set[FileId] = frozenset()) -> dict[str, int] | None:
    """Return the files in folders of code that are not hidden, each with the time of its last change in ns.

    None if it takes too long to find them, or one cannot be read.
    """
    found, ends = {}, time.monotonic() + _LOOK_S
    try:
        for entry in entries_of(folders, None, no_code):
            if time.monotonic() > ends:
                return None
            if not entry.is_folder and "/." not in f"/{entry.name}":
                found[entry.name] = entry.changed_ns
    except (JobError, StorageError):
        return None
    return found


class FilesOfRun:
    """The files that a run on this machine leaves in the user's own folder of code."""

    def __init__(self, code: UserCode) -> None:
        self._code, self._folder = code, code.folders[:1]
        self._before = self._now()

    def _now(self) -> dict[str, int] | None:
        return files_beside_code(self._folder, ids_of_no_code(self._code))

    def record(self, run: RunDir, echo: Callable[[str], None]) -> None:
        """Print and record the files that are new."""
        after = self._now()
        if self._before is None or after is None or not (new := sorted(after.keys() - self._before.keys())):
            return
        echo(f"new files in {self._folder[0]}: {_text(new)}")
        try:
            earlier = run.left_files.read()
            names = {*new, *(earlier.names if earlier is not None else ())}
            run.left_files.write(LeftFiles(self._folder[0], tuple(sorted(names))))
        except StorageError as error:  # the run has its result
            echo(f"warning: {error}")


def note_left_files(run: RunDir, echo: Callable[[str], None]) -> None:
    """Print which files of this generation and of earlier ones are still in the folder of the code.

    A script may take them for a checkpoint.
    """
    records = (run.at(generation).left_files.read() for generation in range(1, run.generation + 1))
    paths = {Path(left.folder, name) for left in records if left is not None for name in left.names}
    if there := sorted(str(path) for path in paths if path.is_file()):
        echo(f"note: files of earlier starts are there, and the code may continue from them: {_text(there)}")


def lost_files(before: Mapping[str, int] | None, after: Mapping[str, int] | None) -> str:
    """Return as text the files that were written to a node's copy of the code since, or empty without any."""
    if before is None or after is None:
        return ""
    return _text(sorted(name for name, changed in after.items() if before.get(name) != changed))


def _text(names: Iterable[str]) -> str:
    first, more = [*names][:_MOST_NAMES], len([*names]) - _MOST_NAMES
    return ", ".join(first) + (f" and {more} more" if more > 0 else "")
