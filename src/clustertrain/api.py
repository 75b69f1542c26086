"""Runs in Python: what the commands of the same names do, in a script, a notebook or a thread.

    submit(job, to=…) ─▶ Run ─▶ status, wait, logs, metrics, checkpoints, best, load, stop
    run(job) ─▶ Run             open(target) ─▶ Run             runs() ─▶ the table of `ls`

In: a job or a run, from a command of cli/ or from a user's Python. Out: a call of a launcher, or of
launchers/local/run.py for a run in this process.

Nothing is printed unless `echo` is given. A job, or a command that the command line refuses, raises the error
of clustertrain.errors with the same text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from clustertrain.errors import EXIT_STOPPED, JobError, RunStopped, error_of_code
from clustertrain.job.file import JobSource, Overrides, load_job, sets_of
from clustertrain.job.model import Job
from clustertrain.job.source import imported_now
from clustertrain.launchers.check import check_training_installed
from clustertrain.launchers.launcher import Launcher
from clustertrain.launchers.listing import list_runs
from clustertrain.launchers.local.run import run_local
from clustertrain.launchers.lookup import launcher_of
from clustertrain.launchers.model import model_of
from clustertrain.launchers.resolve_run import find
from clustertrain.launchers.target import Echo, Target, silent
from clustertrain.observe.checkpoints import SavedCheckpoint, checkpoints_of
from clustertrain.observe.columns import Cell, Columns
from clustertrain.observe.logs import LogSelection
from clustertrain.observe.screen import Screen
from clustertrain.observe.status import read_files
from clustertrain.observe.status_json import StoredStatus
from clustertrain.observe.terminal_text import plain
from clustertrain.observe.wait import wait_for_end
from clustertrain.run_files.admission import Options
from clustertrain.run_files.command_line import UNKNOWN, CommandLine, typed
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.records.result import BestCheckpoint, Result
from clustertrain.run_files.streams.events import Record
from clustertrain.run_files.streams.history import curve
from clustertrain.storage.record_file import typed as checked

_NO_OVERRIDES: Overrides = {}
POLL_S = 5.0
_PATIENCE_S = 600.0


class StartOptions(TypedDict, total=False):
    """The options of a start, as those of `clustertrain run` and `clustertrain submit`."""

    fresh: bool
    takeover: bool
    accept_changes: bool


class SubmitOptions(StartOptions, total=False):
    """Those of `clustertrain submit`."""

    no_check: bool


class RunOptions(StartOptions, total=False):
    """Those of `clustertrain run`."""

    no_ray: bool


@dataclass(frozen=True)
class Run:
    """A run, wherever it is. `target`: a job file, or the folder of a run."""

    target: str
    _sets: tuple[str, ...] = ()
    _to: str | None = None
    _note: Echo = silent

    def status(self) -> StoredStatus:
        """Return the state of the run now."""
        launcher, run = self._found()
        return launcher.status(run)

    def wait(self, *, timeout_s: float | None = None, echo: Echo = silent) -> StoredStatus:
        """Wait for the end of the run, through its restarts; a run that failed raises nothing.

        Args:
            echo: called with each change of state.

        Raises:
            TimeoutError: it has not ended within `timeout_s`.
            StorageError, ClusterError: the storage or the cluster has not answered for ten minutes.
        """
        found: tuple[Launcher, Target] | None = None

        def status() -> StoredStatus:
            nonlocal found  # once: the job file may be that of another run before this one ends
            launcher, run = found = found or self._found()
            files = None if run.files is None else read_files(run.files.run)
            return launcher.status(replace(run, files=files))

        return wait_for_end(
            self.target,
            status,
            echo,
            POLL_S,
            patience_s=_PATIENCE_S,
            timeout_s=timeout_s,
        )

    def logs(
        self,
        *,
        rank: int | None = None,
        node: str | None = None,
        driver: bool = False,
        attempt: int | None = None,
        as_json: bool = False,
        follow: bool = False,
    ) -> Iterator[str]:
        """Return the lines of `clustertrain logs`: the events of the run, or the output of a process.

        Raises:
            JobError: there is no such run or log; the driver is wanted together with a rank or a node.
        """
        if driver and (rank is not None or node is not None):
            raise JobError(
                "--driver is the log of the driver, and --rank and --node are others.\nUse one of them."
            )
        launcher, run = self._found()
        attempt = run.attempt if attempt is None else attempt
        selection = LogSelection(rank, node, driver, attempt, as_json)
        return map(plain, launcher.logs(run, selection, follow=follow))  # a pod may have another version

    def metrics(self) -> list[Record]:
        """Return the curve, as if the run had never been interrupted.

        It has a row for each record, with its `step`, `time` and `kind` ("train" or "eval").

        Raises:
            JobError: only a cluster can read the storage of the run.
        """
        launcher, run = self._found()
        if launcher.reach is not None:
            raise JobError(
                f"The storage of {self.target} is read only in its cluster, which prints no metrics.\n"
                "Read them where the storage is mounted, or let train.log send them to a server."
            )
        return curve(run.visible_run())

    def checkpoints(self) -> list[SavedCheckpoint]:
        """Return the checkpoints, oldest first."""
        launcher, run = self._found()
        if launcher.reach is None:
            return checkpoints_of(run.visible_run())[0]
        printed = "\n".join(launcher.reach.lines(run, ["ckpt", "ls", "--json"]))
        return [checked(SavedCheckpoint, each) for each in json.loads(printed[printed.index("[") :])]

    @property
    def best(self) -> BestCheckpoint | None:
        """The best checkpoint by the job's `checkpoint.keep_best`: its name, metric and value."""
        return next((each.best for each in self.checkpoints() if each.best is not None), None)

    def load(self, checkpoint: SavedCheckpoint | BestCheckpoint | str | None = None) -> dict[str, Any]:
        """Load the tensors of a checkpoint, by default the newest, for `model.load_state_dict`; needs torch.

        Raises:
            JobError: there is no such checkpoint, or it contains no model.
            StorageError: it is damaged.
        """
        check_training_installed("ckpt export")
        from clustertrain.checkpoints.export import load_weights

        name = checkpoint if checkpoint is None or isinstance(checkpoint, str) else checkpoint.name
        with model_of(*self._found(), name) as (shelf, chosen):
            return load_weights(shelf, chosen)

    def stop(self, *, wait: bool = True, echo: Echo = silent) -> None:
        """Request that the run saves and ends; cancel it if it is queued."""
        launcher, run = self._found()
        launcher.stop(run, echo, wait=wait)

    def _found(self) -> tuple[Launcher, Target]:
        return find(self.target, self._sets, self._to, self._note)


def open(target: str | Path, *, overrides: Overrides = _NO_OVERRIDES) -> Run:
    """Return the run of a job file or a folder.

    Args:
        overrides: keys of the job file with other values, if they change the run's name or storage.

    Raises:
        JobError: the job file is wrong, or there is no such run.
    """
    run = Run(str(target), sets_of(overrides))
    run._found()
    return run


def runs(
    storage: str | Path | None = None,
    *,
    args: str | Iterable[str] = (),
    metrics: str | Iterable[str] = (),
    everywhere: bool = False,
) -> list[dict[str, Cell]]:
    """Return the rows of `clustertrain ls --json`, for pandas.DataFrame.

    Args:
        storage: a storage or a job file; default: your runs of this folder.
        args: the option --args.
        metrics: the option --metric.
        everywhere: the option --all.
    """
    columns = Columns.parsed(*([each] if isinstance(each, str) else each for each in (args, metrics)))
    return list_runs(None if storage is None else str(storage), columns, everywhere=everywhere).values()


def submit(
    job: JobSource,
    to: str,
    *,
    overrides: Overrides = _NO_OVERRIDES,
    echo: Echo = silent,
    **options: Unpack[SubmitOptions],
) -> Run:
    """Check a job and submit it to a scheduler, or to the background of this machine.

    It returns without waiting for the end of the job.

    Args:
        job: the path of a job file, or its contents. Paths in a mapping start at the current folder.
        to: the launcher: `local`, `slurm`, `kubernetes`, or one of a plug-in.
        overrides: as --set: {"train.epochs": 3}.
        echo: called with what the command prints.

    Raises:
        ClusterTrainError: the job was not submitted.
    """
    start = JobStart.of(f"submit --to {to}", job, sets_of(overrides))
    start.submit(to, echo, **options)
    return start.run


def run(
    job: JobSource,
    *,
    overrides: Overrides = _NO_OVERRIDES,
    echo: Echo = silent,
    **options: Unpack[RunOptions],
) -> Run:
    """Train on this machine, to the end; an existing run of this name continues. Arguments as for `submit`.

    In the main thread Ctrl-C saves and stops the run; `open(…).stop()` does so from anywhere.

    Raises:
        ClusterTrainError: the job was refused, or its training failed.
        RunStopped: the run was stopped before its end.
    """
    start = JobStart.of("run", job, sets_of(overrides))
    _, result = start.run_here(Screen(echo), owns_process=False, **options)
    text = result.text or f"{start.job.name}: {result.state} ({result.cause})"
    if result.state == "failed":
        raise error_of_code(result.exit_code, text)
    if result.state != "done":
        raise RunStopped(text, checkpointed=result.exit_code == EXIT_STOPPED)
    return start.run


@dataclass(frozen=True)
class JobStart:
    """A start of a job: the job, and how messages and records name it."""

    job: Job
    command: CommandLine

    @classmethod
    def of(cls, start: str, source: JobSource, sets: tuple[str, ...]) -> JobStart:
        """Load a job to start it by the command `start`, such as `submit --to slurm`.

        Raises:
            JobError: the job is wrong, or its own code calls this while it is imported.
        """
        if imported_now:
            raise JobError(
                f"the import of {imported_now[0]} starts a run, which would import it again, without end.\n"
                'Put the call below `if __name__ == "__main__":`, or into another file.'
            )
        job = load_job(source, sets)
        if not isinstance(source, Mapping):
            return cls(job, typed(start, str(source), sets))
        command = replace(typed(start, UNKNOWN.job_file), run=job.run_uri)
        return cls(job, command)

    @property
    def run(self) -> Run:
        return Run(self.job.run_uri)

    def submit(
        self, to: str, echo: Echo, after: Sequence[str] = (), **options: Unpack[SubmitOptions]
    ) -> Target | None:
        """Check the job and submit it; return None if its run is already finished.

        `after`: the jobs before it in a sweep.
        """
        launcher, given = launcher_of(to), Options(**options, command=self.command, after=tuple(after))
        return launcher.submit(launcher.merged(self.job), given, echo)

    def run_here(
        self, screen: Screen, *, owns_process: bool, **options: Unpack[RunOptions]
    ) -> tuple[RunDir, Result]:
        """Run the job on this machine to its end."""
        check_training_installed("run")
        given = Options(**options, command=self.command)
        return run_local(self.job, given, screen, owns_process=owns_process)
