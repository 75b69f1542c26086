"""The common part of launchers whose runs have their storage on this machine."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from clustertrain.errors import JobError, StorageError
from clustertrain.job.file import load_job
from clustertrain.job.model import Job
from clustertrain.launchers.known_runs import KnownRun
from clustertrain.launchers.launcher import Echo, Target
from clustertrain.observe.columns import Columns
from clustertrain.observe.logs import LogSelection, log_lines
from clustertrain.observe.run_table import RunRow, Table, left_out, rows_of, table_of
from clustertrain.observe.status import RunFiles, Status, read_files, run_at, runs_of
from clustertrain.observe.status_json import StoredStatus
from clustertrain.observe.wait import follow_to_its_end
from clustertrain.run.command_line import command_on, typed
from clustertrain.run.folder import RunDir
from clustertrain.run.run_address import addresses_of
from clustertrain.storage import Location

DEFAULT_STORAGE = "runs"
"""The storage of `ls` without an argument: that of a job file without `storage`."""


class FromStorage(ABC):
    """Reads status and logs from the files of runs, and the states of their jobs from the scheduler.

    `start`: the command that starts a run: `run`, or `submit --to slurm`.
    """

    name: str
    start: str
    storage_visible = True

    @abstractmethod
    def statuses(self, runs: Sequence[RunFiles]) -> list[Status]:
        """The statuses of these runs, with one query to the scheduler for all of them."""

    def status_of(self, run: RunDir) -> Status:
        return self.statuses([read_files(run)])[0]

    def status(self, target: Target) -> StoredStatus:
        files = target.files or read_files(target.visible_run())
        return StoredStatus.of(self.statuses([files])[0])

    def logs(self, target: Target, selection: LogSelection, *, follow: bool) -> Iterator[str]:
        return log_lines(target.visible_run(), selection, self.status_of, follow=follow)

    def follow(self, target: Target, echo: Echo) -> int:
        return follow_to_its_end(target.visible_run(), self.status_of, target.command(self.start), echo)

    def runs(self, known: Sequence[KnownRun]) -> tuple[list[RunRow], list[str]]:
        rows = [
            RunRow(each.name, "unknown", where=each.where, text=_not_visible(each), job_yaml=each.job)
            for each in known
        ]
        return rows, []

    def ls(self, place: str | None, namespace: str | None, columns: Columns) -> Table:
        if namespace is not None:
            raise JobError(f"--namespace {namespace}: --to {self.name} has no namespaces.\nOmit --namespace.")
        skipped: list[StorageError] = []
        runs = runs_of(storage_at(place or DEFAULT_STORAGE), skipped.append)
        if place is not None and not runs:
            raise skipped[0] if skipped else no_run_at(place)
        rows, notes = rows_of(runs, self.statuses)
        return table_of(rows, [*map(left_out, skipped), *notes], columns)

    def found(self, job: Job, job_file: str, echo: Echo) -> KnownRun | None:
        return None  # what the storage does not contain was never submitted

    def run_in_cluster(self, target: Target, command: str, *options: str) -> Iterator[str]:
        raise _run_elsewhere(target, command, *options)

    def download(self, target: Target, command: str, *options: str, to: BinaryIO) -> None:
        raise _run_elsewhere(target, command)


def storage_at(place: str) -> Location:
    """The storage that a path, a URI or a job file names.

    Raises:
        JobError: it is a job file, and it is wrong.
    """
    if os.path.isfile(place):
        return load_job(Path(place)).storage.location
    return Location(place if Location(place).is_s3 else str(Path(place).absolute()))


def no_run_at(place: str) -> JobError:
    """The error for a storage without a run; `place` as for `storage_at`."""
    storage = storage_at(place)
    if os.path.isfile(place):
        start = typed("run", place)
        return JobError(
            f"{storage.uri}, the storage of {place}, contains no run.\n"
            f"Start one with `{start}`, or `{start.on_job('submit')}`."
        )
    if (found := run_at(addresses_of(place))) is not None:
        storage_of_run = found[1].storage.uri
        return JobError(
            f"{place} is the folder of one run, and ls takes a storage: a folder of runs.\n"
            f"Use `{command_on(place, 'status')}`, or `{command_on(storage_of_run, 'ls')}`."
        )
    what = "contains no run" if storage.is_s3 or os.path.exists(place) else "does not exist"
    return JobError(
        f"{storage.uri} {what}.\nName a job file, or the `storage` of one; a plain `clustertrain ls` lists "
        "your runs in all storages."
    )


def _run_elsewhere(target: Target, command: str, *options: str) -> JobError:
    again = target.command("run").of(command, *options)
    return JobError(f"The storage of {target.text} is not visible here.\nRun `{again}` where it is mounted.")


def _not_visible(known: KnownRun) -> str:
    return f"{known.storage.uri} is not visible here; submitted from {known.host}"
