"""The interface of every launcher: what can be done with a job, and with a run that it has.

Adding a launcher takes a folder with a module that defines LAUNCHER, a section of the job file, and a line in
launchers/__init__.py. What it does inside the job is another interface: driver/ray_cluster.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from clustertrain.errors import JobError
from clustertrain.job.file import parse_job
from clustertrain.job.model import Job
from clustertrain.launchers import LAUNCHERS
from clustertrain.launchers.known_runs import KnownRun
from clustertrain.observe.logs import LogSelection
from clustertrain.observe.status import Row, Status, find_run
from clustertrain.observe.tables import RunRow
from clustertrain.run.begin import Options
from clustertrain.run.folder import RunDir

Echo = Callable[[str], None]


@dataclass(frozen=True)
class Target:
    """The run that a command names.

    Attributes:
        text: as it was typed: a job file, the folder of a run, or the name of a known run.
        job: of the job file; None where the text is something else.
        known: the newest start of it by this user through this launcher; None where there is none.
        run: in the storage, where this machine sees it there.
    """

    text: str
    job: Job | None = None
    known: KnownRun | None = None
    run: RunDir | None = None

    @property
    def submitted_job(self) -> Job | None:
        """The job as it was started, else as its file is now."""
        if self.known is not None:
            return parse_job(self.known.job, self.known.job_file)
        return self.job

    def visible_run(self) -> RunDir:
        """The run in a storage that this machine sees.

        Raises:
            NotStarted: there is none of that name.
            JobError: there is no such job file, or it is wrong.
        """
        return self.run or find_run(self.text)


class Launcher(Protocol):
    """How jobs of one kind of place are checked, submitted and observed."""

    name: str
    storage_visible: bool
    """Whether its commands read the run's storage on this machine; else they reach it through the cluster."""

    def check(self, job_file: str, sets: Sequence[str]) -> list[str]:
        """What can be said of a job file before it is submitted, a line each. Sends nothing.

        Raises:
            JobError: the file is wrong, or the scheduler would refuse it.
            ClusterError: the scheduler answers, and could never start it.
        """

    def render(self, job_file: str, sets: Sequence[str], note: Echo) -> str:
        """The exact text that `submit` sends. `note` gets what it does not show.

        Raises:
            JobError: it cannot be rendered.
        """

    def submit(
        self, job: Job, job_file: str, options: Options, echo: Echo, *, sets: Sequence[str]
    ) -> KnownRun | None:
        """Check a job, hand it over, and print what to type next; None where its run is finished already.

        Raises:
            ClusterTrainError: it was not submitted.
        """

    def follow(self, target: Target, echo: Echo) -> int:
        """Print each change of state until the run has ended; returns its exit code."""

    def status(self, target: Target) -> list[Row]:
        """The table of `status`."""

    def logs(self, target: Target, selection: LogSelection, *, follow: bool) -> Iterator[str]:
        """The lines of `logs`, oldest first."""

    def stop(self, target: Target, echo: Echo, *, wait: bool) -> None:
        """Ask the run to save and end; one that waits in a queue is cancelled."""

    def statuses(self, runs: Sequence[RunDir]) -> list[Status]:
        """Where runs stand whose storage this machine sees."""

    def runs(self, known: Sequence[KnownRun]) -> tuple[list[RunRow], list[str]]:
        """A line of `ls` for each run whose storage this machine does not see, and notes."""

    def ls(self, place: str, namespace: str | None) -> list[str]:
        """The lines of `ls --to`: the runs of a storage, or of a namespace."""

    def run_in_cluster(self, target: Target, command: str, *options: str) -> Iterator[str]:
        """What a command such as `ckpt ls` prints where the run's storage is, when that is not here.

        Raises:
            JobError: this launcher cannot do that; says what to do instead.
        """


def launcher_of(name: str) -> Launcher:
    """The launcher of that name.

    Raises:
        JobError: there is none; names those that there are.
    """
    if name not in LAUNCHERS:
        raise JobError(f"There is no launcher {name!r}.\nThe launchers are: {', '.join(LAUNCHERS)}.")
    launcher: Launcher = import_module(LAUNCHERS[name]).LAUNCHER
    return launcher
