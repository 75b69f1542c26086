"""The interface of every launcher: the operations on a job, and on a run of it.

A plug-in (job/launcher_plugins.py) names the launcher, its section of the job file, and its part inside the
job. That part has another interface: driver/ray_cluster.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from clustertrain.job.file import parse_job
from clustertrain.job.launcher_plugins import PluginProblem, interface_problem, part_of, plugin_of
from clustertrain.job.model import Job
from clustertrain.launchers.known_runs import KnownRun, by_name
from clustertrain.observe.columns import Columns
from clustertrain.observe.logs import LogSelection
from clustertrain.observe.run_table import RunRow, Table
from clustertrain.observe.status import RunFiles, Status, no_run
from clustertrain.observe.status_json import StoredStatus
from clustertrain.run.admission import Options
from clustertrain.run.command_line import CommandLine, typed
from clustertrain.run.folder import RunDir

Echo = Callable[[str], None]


def silent(text: str) -> None:
    """Print nothing: the echo of who asks for no output."""


@dataclass(frozen=True)
class Target:
    """The run that a command names.

    Attributes:
        text: the argument of the command: a job file, the folder of a run, or the name of a known run.
        job: the job of the job file; None if the text is not a job file.
        known: the newest start of the run by this user with this launcher; None if there is none.
        files: the files of the run in its storage; None if this machine does not see it there.
        sets: the `--set` options of the command.
        attempt: the number of the attempt if the text is the folder of one.
    """

    text: str
    job: Job | None = None
    known: KnownRun | None = None
    files: RunFiles | None = None
    sets: tuple[str, ...] = ()
    attempt: int | None = None

    def command(self, start: str) -> CommandLine:
        """The command line of the run, as this command names it; `start` is the command that starts it."""
        command = typed(start, self.text, self.sets)
        return command if self.known is None else by_name(command, self.known)

    @property
    def submitted_job(self) -> Job | None:
        """The job of the newest known start; else the job of the job file."""
        if self.known is not None:
            return parse_job(self.known.job, self.known.job_file)
        return self.job

    def visible_run(self) -> RunDir:
        """The run in a storage that this machine reads.

        Raises:
            NotStarted: there is no such run.
        """
        if self.files is not None:
            return self.files.run
        if self.known is not None:
            return RunDir.newest(self.known.storage, self.known.name)
        raise no_run(self.text, self.job, self.sets)


@dataclass(frozen=True)
class Checked:
    """What `check` found. `advised`: how many of the lines advise to change the file."""

    lines: list[str]
    advised: int = 0


class Launcher(Protocol):
    """Checks, submits and observes jobs on one kind of platform."""

    name: str
    storage_visible: bool
    """Whether its commands read the run's storage on this machine; else they read it through the cluster."""

    def check(self, job_file: str, sets: Sequence[str]) -> Checked:
        """Check a job file and submit nothing.

        Raises:
            JobError: the file is wrong, or the scheduler would refuse the job.
            ClusterError: the scheduler answers, and could never start the job.
        """

    def render(self, job_file: str, sets: Sequence[str], note: Echo) -> str:
        """Return the exact text that `submit` sends. `note` is called with what this text does not show.

        Raises:
            JobError: the job cannot be rendered.
        """

    def submit(
        self, job: Job, job_file: str, options: Options, echo: Echo, *, sets: Sequence[str]
    ) -> KnownRun | None:
        """Check a job, submit it, and print the next commands; None if its run is already finished.

        Raises:
            ClusterTrainError: the job was not submitted.
        """

    def follow(self, target: Target, echo: Echo) -> int:
        """Print each change of state until the run has ended. Returns the exit code of the run."""

    def status(self, target: Target) -> StoredStatus:
        """The status of the run, with the table of `status`."""

    def logs(self, target: Target, selection: LogSelection, *, follow: bool) -> Iterator[str]:
        """The lines of `logs`, oldest first."""

    def stop(self, target: Target, echo: Echo, *, wait: bool) -> None:
        """Request that the run saves and ends; cancel its job if that waits in a queue."""

    def statuses(self, runs: Sequence[RunFiles]) -> list[Status]:
        """The statuses of runs in a storage that this machine reads."""

    def runs(self, known: Sequence[KnownRun]) -> tuple[list[RunRow], list[str]]:
        """A row of `ls` for each run in a storage that is not visible on this machine, and notes."""

    def ls(self, place: str | None, namespace: str | None, columns: Columns) -> Table:
        """The table of `ls --to`: the runs of a storage, or of a namespace.

        Args:
            place: a storage or a job file; None if none is given.

        Raises:
            JobError: there is no run at `place`, or this launcher has no such columns.
        """

    def found(self, job: Job, job_file: str, echo: Echo) -> KnownRun | None:
        """The run of a job that this user has not started, in the cluster that the job names; None if it is
        not there. Only for a launcher whose storage is not visible here.

        Args:
            echo: called with a note if the cluster could not be asked.
        """

    def run_in_cluster(self, target: Target, command: str, *options: str) -> Iterator[str]:
        """Run a command such as `ckpt ls` in the cluster that has the run's storage. Yields its output lines.

        Raises:
            JobError: this launcher cannot do that; the message names the alternative.
        """

    def download(self, target: Target, command: str, *options: str, to: BinaryIO) -> None:
        """Run a command as `run_in_cluster` does, and write its binary output to a file. Only for a launcher
        whose storage is not visible here."""


def launcher_of(name: str) -> Launcher:
    """The launcher of that name.

    Raises:
        JobError: there is no launcher of that name, or it cannot be used; the message lists the launchers, or
            names the distribution and the reason.
    """
    launcher: Launcher = part_of(name, plugin_of(name).launcher)
    if (problem := interface_problem(name, launcher, Launcher)) is not None:
        raise problem
    return launcher


def usable_launcher(name: str, note: Echo) -> Launcher | None:
    """Return the launcher of that name, or write a note and return None if it cannot be used."""
    try:
        return launcher_of(name)
    except PluginProblem as problem:
        note(str(problem))
        return None
