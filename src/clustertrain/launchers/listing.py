"""`clustertrain ls` without --to: the runs of a storage and this user's known runs, in a table."""

from __future__ import annotations

import os
from collections.abc import Iterable

from clustertrain.errors import StorageError
from clustertrain.launchers.find import launcher_in_storage
from clustertrain.launchers.from_storage import DEFAULT_STORAGE, no_run_at, storage_at
from clustertrain.launchers.known_runs import KnownRun, known_runs, remove_known_run
from clustertrain.launchers.launcher import launcher_of
from clustertrain.observe.columns import NO_COLUMNS, Columns
from clustertrain.observe.run_table import RunRow, Table, rows_of, table_of
from clustertrain.observe.status import RunFiles, Status, is_known, read_files, runs_of
from clustertrain.run.folder import RunDir

_PATIENCE_S = 5.0  # a server that is down must not delay the table for longer


def list_runs(place: str | None = None, columns: Columns = NO_COLUMNS) -> Table:
    """The runs of a storage, and this user's known runs: all of them, or those in the storage of `place`.

    Args:
        place: a storage or a job file; None for ./runs, which may be missing.

    Raises:
        JobError: there is no run at `place`.
        StorageError: the storage refuses.
    """
    storage = storage_at(place or DEFAULT_STORAGE)
    known, notes = known_runs()
    visible = {run.uri: run for run in runs_of(storage)}
    remote: dict[str, list[KnownRun]] = {}
    for each in known:
        if place is not None and not each.is_in(storage):
            continue
        found = _visible(each)
        if found is None:
            remote.setdefault(each.launcher, []).append(each)
            continue
        run, is_there = found
        if is_there:
            visible.setdefault(run.uri, run)
        else:
            remove_known_run(each)
    rows, more_notes = _rows(visible.values())
    notes += more_notes
    for name, group in remote.items():
        more, more_notes = launcher_of(name).runs(group)
        rows += more
        notes += more_notes
    if place is not None and not rows:
        raise no_run_at(place)
    return table_of(sorted(rows, key=lambda row: (row.name, row.where)), notes, columns)


def _rows(runs: Iterable[RunDir]) -> tuple[list[RunRow], list[str]]:
    """A row for each run, sorted by name, and notes. A run with a damaged file gets a row with the error."""
    read, damaged = [], []
    for run in runs:
        try:
            read.append(read_files(run))
        except StorageError as error:
            damaged.append(RunRow(run.name, "unknown", text=str(error), run=run))
    rows, notes = rows_of(statuses_of(read))
    return sorted([*damaged, *rows], key=lambda row: row.name), notes


def statuses_of(runs: Iterable[RunFiles]) -> list[Status]:
    """The statuses of runs in a visible storage, sorted by name. Each scheduler gets one query for all of its
    runs."""
    groups: dict[str, list[RunFiles]] = {}
    for files in runs:
        groups.setdefault(launcher_in_storage(files).name, []).append(files)
    found = [status for name, group in groups.items() for status in launcher_of(name).statuses(group)]
    return sorted(found, key=lambda status: status.run.name)


def _visible(known: KnownRun) -> tuple[RunDir, bool] | None:
    """The run, and whether its storage contains it; None if this machine cannot read that storage."""
    if not launcher_of(known.launcher).storage_visible:
        return None
    if not known.storage.is_s3 and not os.path.isdir(known.storage.uri):
        return None
    try:
        run = RunDir.newest(known.storage.with_patience(_PATIENCE_S), known.name)
        return run, is_known(run)
    except StorageError:
        return None  # the server does not answer, or refuses this user
