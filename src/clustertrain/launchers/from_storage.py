"""The common part of local and slurm: this machine reads the storage of their runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from clustertrain.errors import JobError
from clustertrain.launchers.known_runs import KnownRun
from clustertrain.launchers.launcher import Target
from clustertrain.observe.logs import LogSelection, log_lines
from clustertrain.observe.status import Row, RunFiles, Status, read_files, runs_of
from clustertrain.observe.tables import RunRow, list_lines, rows_of, status_rows
from clustertrain.run.folder import RunDir


class FromStorage(ABC):
    """Reads status and logs from the files of runs, and the states of their jobs from the scheduler."""

    name: str
    storage_visible = True

    @abstractmethod
    def statuses(self, runs: Sequence[RunFiles]) -> list[Status]:
        """The statuses of these runs, with one query to the scheduler for all of them."""

    def status_of(self, run: RunDir) -> Status:
        return self.statuses([read_files(run)])[0]

    def status(self, target: Target) -> list[Row]:
        files = target.files or read_files(target.visible_run())
        return status_rows(self.statuses([files])[0])

    def logs(self, target: Target, selection: LogSelection, *, follow: bool) -> Iterator[str]:
        return log_lines(target.visible_run(), selection, self.status_of, follow=follow)

    def runs(self, known: Sequence[KnownRun]) -> tuple[list[RunRow], list[str]]:
        rows = [RunRow(each.name, "unknown", where=each.where, text=_not_visible(each)) for each in known]
        return rows, []

    def ls(self, place: str, namespace: str | None) -> list[str]:
        if namespace is not None:
            raise JobError(f"--namespace {namespace}: --to {self.name} has no namespaces.\nOmit --namespace.")
        return list_lines(*rows_of(self.statuses([read_files(run) for run in runs_of(place)])))

    def run_in_cluster(self, target: Target, command: str, *options: str) -> Iterator[str]:
        text = target.text
        raise JobError(f"The storage of {text} is not visible here.\nRun `{command}` where it is mounted.")


def _not_visible(known: KnownRun) -> str:
    return f"{known.storage.uri} is not visible here; submitted from {known.host}"
