"""`clustertrain ls` without --to: the runs of a storage and this user's known runs, in a table."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from clustertrain.errors import JobError, StorageError
from clustertrain.job.file import load_job
from clustertrain.job.launcher_plugins import plugins
from clustertrain.launchers.known_runs import KnownRun, known_runs, remove_known_run
from clustertrain.launchers.lookup import launcher_of
from clustertrain.launchers.resolve_run import launcher_in_storage
from clustertrain.observe.columns import NO_COLUMNS, Columns
from clustertrain.observe.run_table import RunRow, Table, left_out, points_of_sweep, rows_of, table_of
from clustertrain.observe.status import RunFiles, Status, is_known, runs_of
from clustertrain.run_files.command_line import command_on, to_type
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.storage import Location


def list_runs(
    place: str | None = None,
    columns: Columns = NO_COLUMNS,
    *,
    everywhere: bool = False,
    sweep: str | None = None,
    to: str | None = None,
) -> Table:
    """List the runs of a storage, and this user's known runs.

    The known runs are the runs of this folder, or all if it has none; with `place`, the runs in its storage.
    A known run is read if its folder is on this machine.

    Args:
        place: a storage or a job file, or None for ./runs, which may be missing.
        everywhere: all known runs, whether or not this folder has some.
        sweep: only the points of the sweep of this name, with columns for what differs between them.
        to: the launcher of the known runs.

    Raises:
        JobError: there is no run at `place`.
        StorageError: the storage refuses.
    """
    storage = _storage_at(place)
    skipped: list[StorageError] = []
    visible = {run.store.uri(run.name): run for run in runs_of(storage, skipped.append)}
    known, notes = known_runs()
    notes += map(left_out, skipped)
    others = [each for each in known if each.uri not in visible and to in (None, each.launcher)]
    if place is not None:
        others = [each for each in others if each.is_in(storage)]
    elif not everywhere:
        own = [each for each in others if _is_of_this_folder(each)]
        if (own or visible) and (more := len(others) - len(own)):
            notes.append(f"{more} more of your runs elsewhere: `{to_type('clustertrain')} ls --all`")
            others = own
    not_read = []
    for each in others:
        if each.launcher not in plugins():
            text = f"the launcher {each.launcher} is not installed here"
            not_read.append(RunRow(each.name, "unknown", where=each.where, text=text, job_yaml=each.job))
            continue
        if each.storage_there or not (each.is_in(storage) or os.path.isdir(each.storage.uri)):
            text = f"`{command_on(each.uri, 'status')}` reads its state"
            not_read.append(RunRow(each.name, "unknown", where=each.where, text=text, job_yaml=each.job))
            continue
        run = RunDir.newest(each.storage, each.name)
        if is_known(run):
            visible[each.uri] = run
        else:
            remove_known_run(each)
    rows, more_notes = rows_of(visible.values(), statuses_of)
    rows += not_read
    if place is not None and not rows:
        if skipped:
            raise skipped[0]
        raise JobError(
            f"{storage.uri} contains no run.\n"
            "ls takes a job file, or a storage: a folder of runs. "
            f"Of one run: `{command_on(place, 'status')}`."
        )
    if sweep is not None:
        rows, columns = points_of_sweep(rows, sweep, columns)
    alike = Counter((row.name, row.where) for row in rows)
    rows = [_with_folder(row) if alike[row.name, row.where] > 1 else row for row in rows]
    return table_of(sorted(rows, key=lambda row: (row.name, row.where)), notes + more_notes, columns)


def _storage_at(place: str | None) -> Location:
    """Return the storage that `ls` names by a path, a URI or a job file; without an argument, ./runs.

    Raises:
        JobError: it is a job file, and it is wrong.
    """
    if place is not None and os.path.isfile(place):
        return load_job(Path(place)).storage.location
    place = place or "runs"  # that of a job file without `storage`
    return Location(place if Location(place).is_s3 else str(Path(place).absolute()))


def _with_folder(row: RunRow) -> RunRow:
    """Return the row with its folder, for a run whose name and place another run has as well."""
    folder = None if row.run is None else row.run.store.location.uri  # otherwise the row's text has it
    return row if folder is None else replace(row, where=f"{row.where}, {folder}")


def _is_of_this_folder(known: KnownRun) -> bool:
    """Return whether the storage or the job file of a run is below the current folder."""
    here = f"{Path.cwd()}/"
    return known.uri.startswith(here) or known.job_file.startswith(here)


def statuses_of(runs: Iterable[RunFiles]) -> list[Status]:
    """Return the statuses of runs in a visible storage, sorted by name.

    Each scheduler gets one query for all of its runs.
    """
    groups: dict[str, list[RunFiles]] = {}
    for files in runs:
        groups.setdefault(launcher_in_storage(files).name, []).append(files)
    found = [status for name, group in groups.items() for status in launcher_of(name).statuses(group)]
    return sorted(found, key=lambda status: status.run.name)
