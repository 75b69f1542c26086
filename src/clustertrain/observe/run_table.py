"""The table of `ls`: a row for each run, printed as lines or as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from clustertrain.errors import JobError, StorageError
from clustertrain.job.file import parse_job
from clustertrain.job.model import Job
from clustertrain.node.units import aligned
from clustertrain.observe.as_json import as_json
from clustertrain.observe.columns import Cell, Columns
from clustertrain.observe.event_lines import figures_text
from clustertrain.observe.status import RunFiles, Status, read_files
from clustertrain.observe.tables import LEAST_WALL_S
from clustertrain.observe.terminal_text import plain
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.recorded_job import trained_jobs

A = TypeVar("A")
T = TypeVar("T")
_WIDEST = 60  # of a column: the reason of a failure may be a long line


@dataclass(frozen=True)
class Table:
    """Rows with a value for each key of `headers`, and notes about missing information."""

    headers: Mapping[str, str]
    rows: Sequence[Mapping[str, Cell]]
    notes: Sequence[str] = ()

    def lines(self) -> list[str]:
        """Return the columns aligned, with the first line of each text; then each note once."""
        cells = [[_text(row.get(key)) for key in self.headers] for row in self.rows]
        notes = [f"note: {note}" for note in dict.fromkeys(self.notes)]
        return [*aligned([list(self.headers.values()), *cells], _WIDEST), *notes]

    def json(self) -> str:
        """Return an array with an object for each row.

        A number that is not finite is null, because JSON has no such number.
        """
        return json.dumps(json.loads(as_json(self.values())), indent=1)

    def values(self) -> list[dict[str, Cell]]:
        """Return each row with a value, or None, for each key."""
        return [{key: row.get(key) for key in self.headers} for row in self.rows]


def _text(cell: Cell) -> str:
    if cell in (None, ""):
        return "-"
    return f"{cell:.6g}" if isinstance(cell, float) else plain(str(cell).partition("\n")[0])


@dataclass(frozen=True)
class RunRow:
    """A run as a row of `ls`.

    Attributes:
        name: the name of the run.
        state: one of the table of states, or unknown.
        step: as in `status`.
        attempt: as in `status`.
        ettr: productive seconds / all since the first submission or start; null if it is unknown, and in the
            first minute.
        device_hours: GPU-hours that the ranks held, or CPU-hours; null as ettr.
        where: the machine, or the scheduler's job.
        text: the metrics, or the reason of the state.
        job_yaml: the job as this user started it, if this machine does not see the run.
        run: None if this machine does not see its storage.
    """

    name: str
    state: str
    step: int | None = None
    attempt: int | None = None
    ettr: float | None = None
    device_hours: float | None = None
    where: str = "this machine"
    text: str = ""
    job_yaml: str | None = None
    run: RunDir | None = None


_UNREADABLE = (JobError, StorageError)  # such as the job of a later version


def rows_of(
    runs: Iterable[RunDir], statuses: Callable[[Sequence[RunFiles]], list[Status]]
) -> tuple[list[RunRow], list[str]]:
    """Return a row for each run whose storage this machine can access, sorted by name, and notes.

    There is a note for each run whose scheduler did not answer. A run that cannot be read gets a row with
    the error.

    Args:
        statuses: the statuses of some runs, with one query to each scheduler.
    """
    rows: list[RunRow] = []

    def readable(run: RunDir, read: Callable[[A], T], of: A) -> list[T]:
        try:
            return [read(of)]
        except _UNREADABLE as error:
            rows.append(RunRow(run.name, "unknown", text=str(error), run=run))
            return []

    files = [each for run in runs for each in readable(run, read_files, run)]
    try:
        found = statuses(files)
    except _UNREADABLE:  # of one run, which is found by reading each for itself
        of_each = [status for each in files for status in readable(each.run, statuses, [each])]
        found = [status for of_one in of_each for status in of_one]
    for status in found:
        rows += readable(status.run, _row_of, status)
    notes = [f"{each.no_answer}; this is the state in the storage" for each in found if each.note]
    return sorted(rows, key=lambda row: row.name), notes


def left_out(error: StorageError) -> str:
    """Return the note on a folder of a storage that cannot be listed."""
    return f"{str(error).splitlines()[0].rstrip('.')}; it is left out"


def _row_of(status: Status) -> RunRow:
    figures = figures_text(status.result.metrics) if status.result else ""
    reason = status.result.text.partition("\n")[0] if status.result else ""
    ledger = status.ledger
    is_long = ledger.wall_s >= LEAST_WALL_S
    return RunRow(
        status.run.name,
        status.state,
        step=status.step,
        attempt=status.attempt.n if status.attempt else None,
        ettr=round(ledger.ettr, 3) if is_long and ledger.ettr is not None else None,
        device_hours=round(ledger.device_hours, 3) if is_long else None,
        where=status.where or "this machine",
        text=figures or status.standing.text or reason,
        run=status.run,
    )


_BEFORE = {"name": "NAME", "state": "STATE", "step": "STEP"}
_AFTER = {
    "text": "FIGURES",
    "attempt": "ATTEMPT",
    "where": "WHERE",
    "ettr": "ETTR",
    "device_hours": "HOURS",
}
PRINTED = (*_BEFORE, *_AFTER)
"""The fields of a RunRow that every row of the table has."""


def table_of(rows: Sequence[RunRow], notes: Sequence[str], columns: Columns) -> Table:
    """Return the table of these runs.

    If `columns` selects any, it reads the recorded job and the metrics of each run.
    """
    cells: list[dict[str, Cell]] = []
    unread = []
    for row in rows:
        cells.append({key: getattr(row, key) for key in PRINTED})
        try:
            cells[-1] |= columns.values(_jobs_of(row), row.run) if columns.headers else {}
        except _UNREADABLE as error:
            unread.append(f"{row.name}: {str(error).splitlines()[0]}")
    return Table(_BEFORE | columns.headers | _AFTER, cells, [*notes, *unread, *columns.notes(cells)])


def points_of_sweep(rows: Sequence[RunRow], name: str, columns: Columns) -> tuple[list[RunRow], Columns]:
    """Return the rows of the points of a sweep, and the columns with what differs between their jobs.

    Raises:
        JobError: there is none.
    """
    points = [row for row in rows if row.name.startswith(f"{name}-")]
    if not points:
        raise JobError(f"There is no run {name}-….\nName a sweep by the name in its job file.")
    jobs: list[list[Job]] = []
    for point in points:
        with suppress(*_UNREADABLE):  # its row, or a note, has the error
            jobs.append(_jobs_of(point))
    return points, columns.of_sweep(jobs)


def _jobs_of(row: RunRow) -> list[Job]:
    if row.run is not None:
        return trained_jobs(row.run)
    return [parse_job(row.job_yaml, f"the job of {row.name}")] if row.job_yaml is not None else []
