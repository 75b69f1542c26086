"""The commands `clustertrain data`: list, fetch and remove the data sets of a job.

Nothing here loads torch or ray.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from clustertrain.errors import ClusterError, DataError, JobError, StorageError
from clustertrain.job.data_and_storage import DataEntry
from clustertrain.job.model import Job
from clustertrain.launchers.listing import statuses_of
from clustertrain.node.units import aligned, size_text
from clustertrain.observe.as_json import as_json
from clustertrain.observe.screen import Screen
from clustertrain.observe.status import read_files, runs_of
from clustertrain.run_files.recorded_job import job_of
from clustertrain.staging.entry import StagedData, data_folder, local_folder
from clustertrain.staging.lease import Contender
from clustertrain.staging.source import masked
from clustertrain.staging.stage import stage
from clustertrain.storage import open_store
from clustertrain.storage.location import Location
from clustertrain.storage.posix import refused
from clustertrain.storage.posix_tree import remove_tree


@dataclass(frozen=True)
class DataSet:
    """A data set of a job: its keys, where it is, and the folder `into` which it is staged."""

    name: str
    keys: DataEntry
    location: Location
    into: Path

    def entry(self) -> StagedData:
        """Return the entry of the data set in its folder.

        Raises:
            DataError: it is a local file that does not exist.
        """
        return StagedData.of(self.location, self.keys.sha256, self.keys.extract, self.into)


def data_sets(job: Job, name: str | None = None) -> list[DataSet]:
    """Return the data sets of a job, or the one of that name.

    Raises:
        JobError: the job has no data set of that name.
    """
    if name is not None and name not in job.data:
        there_are = f"There are: {', '.join(job.data)}." if job.data else "It has none."
        raise JobError(f"{job.name} has no data set {name!r}.\n{there_are}")
    shared = open_store(job.storage.location).local_folder("data")
    return [
        DataSet(each, keys, job.data_location(each), data_folder(shared, keys.per, job.scratch))
        for each, keys in job.data.items()
        if name in (None, each)
    ]


@dataclass(frozen=True)
class DataState:
    """What is there of a data set.

    Attributes:
        name: its key in the job file.
        per: cluster or node, where each has its own copy.
        state: in place, ready, partial, absent, or missing: its source is not there.
        size_bytes: the bytes that are staged.
        source: its URI, without credentials.
        where: the file or folder; null if there is none yet.
        error: why it is missing.
    """

    name: str
    per: str
    state: str
    source: str
    size_bytes: int | None = None
    where: str | None = None
    error: str | None = None


def list_data(sets: list[DataSet], *, json: bool) -> list[str]:
    """Return a header, and a line for each data set: name, per, state, size, source and location.

    With `json`, return one array.
    """
    states = [*map(_state, sets)]
    if json:
        return [as_json(states)]
    rows = [("NAME", "PER", "STATE", "SIZE", "FROM", "WHERE")]
    for each in states:
        where = each.error or each.where or "-"
        size = "-" if each.size_bytes is None else size_text(each.size_bytes)
        rows.append((each.name, each.per, each.state, size, each.source, where))
    return aligned(rows) if states else ["The job has no data."]


def _state(each: DataSet) -> DataState:
    state = partial(DataState, each.name, each.keys.per, source=masked(each.location.uri))
    if (folder := local_folder(each.location)) is not None:
        return state("in place", where=str(folder))
    try:
        entry = each.entry()
        found = entry.ready()
    except (DataError, StorageError) as error:
        return state("missing", error=str(error).splitlines()[0])
    if found is not None:
        return state("ready", size_bytes=found.size_bytes, where=str(found.path))
    if not (parts := entry.parts()):
        return state("absent")
    return state("partial", size_bytes=max(map(_bytes_below, parts)), where=str(entry.into))


def fetch_data(sets: list[DataSet], screen: Screen) -> None:
    """Stage the data sets now, and show it.

    Raises:
        DataError, JobError, StorageError: as clustertrain.staging.stage.stage.
    """
    for each in sets:
        path = stage(
            each.name,
            each.location,
            sha256=each.keys.sha256,
            extract=each.keys.extract,
            into=each.into,
            on_event=lambda event: screen.show([{**event, "kind": event["event"]}]),
        )
        screen.echo(f"data {each.name}: {path}")


def evict_data(job: Job, sets: list[DataSet], *, force: bool) -> Iterator[str]:
    """Remove the staged data sets, and what killed fetches left behind; yields a line for each.

    Raises:
        ClusterError: an active run in the job's storage uses one of them, or one is being fetched.
    """
    entries = {each: each.entry() for each in sets if local_folder(each.location) is None}
    if not force and entries:
        _check_unused(job, {(entry.into, entry.key) for entry in entries.values()})
    for each in sets:
        if each not in entries:
            yield f"{each.name}  kept: it is used in place"
        else:
            yield f"{each.name}  freed {size_text(_remove(entries[each], force=force))}"


def _check_unused(job: Job, keys: set[tuple[Path, str]]) -> None:
    for status in statuses_of(map(read_files, runs_of(job.storage.location))):
        if status.runner is None or status.attempt is None or (active := job_of(status.attempt)) is None:
            continue
        if used := [each.name for each in data_sets(active) if _key_of(each) in keys]:
            raise ClusterError(
                f"{', '.join(used)} is in use: {status.run.name} is active ({status.runner}).\n"
                "Wait for its end, stop it, or remove the data anyway with --force."
            )


def _key_of(each: DataSet) -> tuple[Path, str] | None:
    try:
        entry = each.entry()
    except DataError:
        return None  # without its source it has no key, so it is none of the data sets to remove
    return entry.into, entry.key


def _remove(entry: StagedData, *, force: bool) -> int:
    """Remove all files of a data set, under its lease. Returns the number of bytes that were freed."""
    if not entry.into.is_dir():
        return 0
    lease = Contender(entry.leases, entry.key).try_acquire()
    if lease is None and not force:
        raise ClusterError(
            f"{masked(entry.location.uri)} is being fetched now.\n"
            "Wait for it, or remove it anyway with --force."
        )
    folders = [path for path in (entry.folder, *entry.parts()) if path.exists()]
    freed_bytes = sum(_bytes_below(path) for path in folders)
    try:
        with lease or nullcontext():
            for path in folders:
                remove_tree(path)
            for path in entry.into.glob(f".*{entry.key}*.gone"):  # of a removal that was killed
                shutil.rmtree(path)
            for path in entry.leases.glob(f"{entry.key}.*"):  # also our own: no process waits for it
                path.unlink(missing_ok=True)
    except OSError as error:
        raise refused(Path(error.filename or entry.into), "removed", error) from error
    return freed_bytes


def _bytes_below(folder: Path) -> int:
    """Return the bytes that a removal frees: a file with two names counts once."""
    found = (path.lstat() for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return sum({(each.st_dev, each.st_ino): each.st_size for each in found}.values())
