"""A plain `clustertrain ls`: the runs of the storage here and all that this user started, in one table."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from clustertrain.errors import StorageError
from clustertrain.launchers.find import launcher_in_storage
from clustertrain.launchers.known_runs import KnownRun, forget, known_runs
from clustertrain.launchers.launcher import launcher_of
from clustertrain.observe.status import Status, is_known, read_files, runs_of
from clustertrain.observe.tables import RunRow, list_lines, note_of, run_row
from clustertrain.run.folder import RunDir
from clustertrain.storage import Location

_PATIENCE_S = 5.0  # a server that is down must not hold up the table


def list_all(storage: str) -> list[str]:
    """The lines for the runs of a storage, where it is there, and for the known runs."""
    known, notes = known_runs()
    visible = {run.uri: run for run in (runs_of(storage) if Path(storage).is_dir() else [])}
    remote: dict[str, list[KnownRun]] = {}
    for each in known:
        run = _visible(each)
        if run is None:
            remote.setdefault(each.launcher, []).append(each)
        elif is_known(run):
            visible.setdefault(run.uri, run)
        else:
            forget(each)
    rows, more_notes = _rows(visible.values())
    notes += more_notes
    for name, group in remote.items():
        more, more_notes = launcher_of(name).runs(group)
        rows += more
        notes += more_notes
    return list_lines(sorted(rows, key=lambda row: (row.name, row.where)), notes)


def list_storage(storage: Location | str) -> list[str]:
    """The lines for the runs of one storage."""
    return list_lines(*_rows(runs_of(storage)))


def _rows(runs: Iterable[RunDir]) -> tuple[list[RunRow], list[str]]:
    """A line for each run, by name, and notes. A run with a damaged file is a line of its own."""
    sound, rows = [], []
    for run in runs:
        try:
            read_files(run)
        except StorageError as error:
            rows.append(RunRow(run.name, "unknown", text=str(error)))
        else:
            sound.append(run)
    statuses = statuses_of(sound)
    rows += [run_row(status) for status in statuses]
    notes = [note for status in statuses for note in note_of(status)]
    return sorted(rows, key=lambda row: row.name), notes


def statuses_of(runs: Iterable[RunDir]) -> list[Status]:
    """Where runs stand that this machine sees, by name; each scheduler is asked once for all of its runs."""
    groups: dict[str, list[RunDir]] = {}
    for run in runs:
        groups.setdefault(launcher_in_storage(run).name, []).append(run)
    found = [status for name, group in groups.items() for status in launcher_of(name).statuses(group)]
    return sorted(found, key=lambda status: status.run.name)


def _visible(known: KnownRun) -> RunDir | None:
    """The run in its storage, where this machine sees that."""
    if not launcher_of(known.launcher).storage_visible:
        return None
    if not known.storage.is_s3 and not Path(known.storage.uri).is_dir():
        return None
    try:
        run = RunDir.newest(known.storage.with_patience(_PATIENCE_S), known.name)
        is_known(run)
    except StorageError:
        return None  # the server is away, or refuses this user
    return run
