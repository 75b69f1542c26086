"""`clustertrain ls` without --to: the runs of a storage and this user's known runs, in a table."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from clustertrain.errors import StorageError
from clustertrain.launchers.known_runs import KnownRun, known_runs, remove_known_run
from clustertrain.launchers.launcher import launcher_of, usable_launcher
from clustertrain.launchers.resolve_run import launcher_in_storage
from clustertrain.launchers.storages import DEFAULT_STORAGE, no_run_at, storage_at
from clustertrain.observe.columns import NO_COLUMNS, Columns
from clustertrain.observe.run_table import RunRow, Table, left_out, points_of_sweep, rows_of, table_of
from clustertrain.observe.status import RunFiles, Status, is_known, runs_of
from clustertrain.run.command_line import to_type
from clustertrain.run.folder import RunDir

_PATIENCE_S = 5.0  # a server that is down must not delay the table for longer


def list_runs(
    place: str | None = None,
    columns: Columns = NO_COLUMNS,
    *,
    everywhere: bool = False,
    sweep: str | None = None,
) -> Table:
    """The runs of a storage, and this user's known runs: those of this folder, or all if it has none; or
    those in the storage of `place`.

    Args:
        place: a storage or a job file, or None for ./runs, which may be missing.
        everywhere: all known runs, whether or not this folder has some.
        sweep: only the points of the sweep of this name, with columns for what differs between them.

    Raises:
        JobError: there is no run at `place`.
        StorageError: the storage refuses.
    """
    storage = storage_at(place or DEFAULT_STORAGE)
    known, notes = known_runs()
    names = {each.launcher for each in known}
    usable = {name for name in names if usable_launcher(name, notes.append) is not None}
    known = [each for each in known if each.launcher in usable]
    skipped: list[StorageError] = []
    visible = {run.uri: run for run in runs_of(storage, skipped.append)}
    shown = {run.store.uri(run.name) for run in visible.values()}
    notes += map(left_out, skipped)
    own = known if place is not None or everywhere else _of_this_folder(known)
    if (own or shown) and (others := sum(each not in own and each.uri not in shown for each in known)):
        notes.append(f"{others} more of your runs elsewhere: `{to_type('clustertrain')} ls --all`")
        known = own
    remote: dict[str, list[KnownRun]] = {}
    silent: set[str | None] = set()
    for each in known:
        if place is not None and not each.is_in(storage):
            continue
        found = _visible(each, silent)
        if found is None and each.uri in shown:
            continue  # its row has the reason why it cannot be read
        if found is None:
            remote.setdefault(each.launcher, []).append(each)
            continue
        run, is_there = found
        if is_there:
            visible.setdefault(run.uri, run)
        else:
            remove_known_run(each)
    rows, more_notes = rows_of(visible.values(), statuses_of)
    notes += more_notes
    for name, group in remote.items():
        if (reach := launcher_of(name).reach) is None:
            rows += map(_not_visible, group)
            continue
        more, more_notes = reach.runs(group)
        rows += more
        notes += more_notes
    if place is not None and not rows:
        raise skipped[0] if skipped else no_run_at(place)
    if sweep is not None:
        rows, columns = points_of_sweep(rows, sweep, columns)
    alike = Counter((row.name, row.where) for row in rows)
    rows = [_with_folder(row) if alike[row.name, row.where] > 1 else row for row in rows]
    return table_of(sorted(rows, key=lambda row: (row.name, row.where)), notes, columns)


def _with_folder(row: RunRow) -> RunRow:
    """The row of a run whose name and place another run has as well."""
    folder = None if row.run is None else row.run.store.location.uri  # otherwise the row's text has it
    return row if folder is None else replace(row, where=f"{row.where}, {folder}")


def _of_this_folder(known: list[KnownRun]) -> list[KnownRun]:
    """The runs whose storage or job file is below the current folder."""
    here = f"{Path.cwd()}/"
    return [each for each in known if each.uri.startswith(here) or each.job_file.startswith(here)]


def statuses_of(runs: Iterable[RunFiles]) -> list[Status]:
    """The statuses of runs in a visible storage, sorted by name. Each scheduler gets one query for all of its
    runs."""
    groups: dict[str, list[RunFiles]] = {}
    for files in runs:
        groups.setdefault(launcher_in_storage(files).name, []).append(files)
    found = [status for name, group in groups.items() for status in launcher_of(name).statuses(group)]
    return sorted(found, key=lambda status: status.run.name)


def _visible(known: KnownRun, silent: set[str | None]) -> tuple[RunDir, bool] | None:
    """The run, and whether its storage contains it, or None if this machine cannot read that storage.
    `silent`: the endpoints of the servers that have not answered before."""
    server = known.storage.endpoint
    if launcher_of(known.launcher).reach is not None or (known.storage.is_s3 and server in silent):
        return None
    if not known.storage.is_s3 and not os.path.isdir(known.storage.uri):
        return None
    began = time.monotonic()
    try:
        run = RunDir.newest(known.storage.with_patience(_PATIENCE_S), known.name)
        return run, is_known(run)
    except StorageError:  # the server does not answer, or refuses this user
        if time.monotonic() - began >= _PATIENCE_S:
            silent.add(server)
        return None


def _not_visible(known: KnownRun) -> RunRow:
    text = f"{known.storage.uri} is not visible here; submitted from {known.host}"
    return RunRow(known.name, "unknown", where=known.where, text=text, job_yaml=known.job)
