"""The run that a command names, and the way to its storage if only a cluster has that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from clustertrain.errors import ClusterError, JobError
from clustertrain.job.model import Job
from clustertrain.job.site import SiteJob, with_site
from clustertrain.launchers.known_runs import KnownRun, by_folder
from clustertrain.launchers.scheduler.interface import Sent
from clustertrain.observe.run_table import RunRow
from clustertrain.observe.status import RunFiles, no_run
from clustertrain.observe.status_json import StoredStatus
from clustertrain.run_files.command_line import CommandLine, typed
from clustertrain.run_files.folder.run_dir import RunDir

Echo = Callable[[str], None]


def silent(text: str) -> None:
    """Print nothing: the echo of who asks for no output."""


@dataclass(frozen=True)
class Target:
    """The run that a command names.

    Attributes:
        text: the argument of the command: a job file, or the folder of a run.
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
        """Return the command line of the run, as this command names it; the command `start` starts it."""
        command = typed(start, self.text, self.sets)
        return command if self.known is None else by_folder(command, self.known)

    @property
    def submitted_job(self) -> SiteJob:
        """The job of the newest known start; else the job of the job file, merged with the site file.

        It has the cluster, the namespace and the run's name.

        Raises:
            JobError: neither a job file nor a known run was named.
        """
        if self.known is not None:
            return self.known.submitted_job
        if self.job is None:
            raise JobError(
                f"{self.text} is not a job file, and only a job file names the cluster.\nName the job file."
            )
        return with_site(self.job)

    def visible_run(self) -> RunDir:
        """Return the run in a storage that this machine reads.

        Raises:
            NotStarted: there is no such run.
        """
        if self.files is not None:
            return self.files.run
        if self.known is not None:
            return RunDir.newest(self.known.storage, self.known.name)
        raise no_run(self.text, self.job, self.sets)


class NotThere(ClusterError):
    """Nothing of the run is there that could run a command, or the connection to it broke."""


class Reach(Protocol):
    """The way to the storage of runs that this machine does not see, in the cluster that has it."""

    def sent(self, target: Target) -> Sent:
        """Return the job of the run."""

    def storage_of(self, job: SiteJob) -> str:
        """Return the URI of the job's storage in the cluster."""

    def rows(self, job_file: str | None, namespace: str | None) -> Sequence[RunRow]:
        """Return a row of `ls` for each run in the cluster, without its storage.

        Args:
            job_file: names the cluster; None for the user's own settings.

        Raises:
            ClusterError: the cluster refused a request.
        """

    def status(self, target: Target, *, existed: bool = False) -> StoredStatus:
        """Return the state of the run, by its job and its storage.

        Args:
            existed: if nothing is there, the run was cancelled before it began.

        Raises:
            JobError: there is no such run.
            Unanswered: the cluster does not answer.
            ClusterError: the cluster refused a request.
        """

    def lines(self, target: Target, command: Sequence[str]) -> Iterator[str]:
        """Run a command of clustertrain on a run where its storage is, and yield the lines of its output.

        Args:
            command: such as ["ckpt", "ls"]; without the run.

        Raises:
            NotThere: the process that runs it is gone; raised for `stop` and `logs --follow` also if only the
                storage can be read.
            ClusterTrainError: the command failed, or the cluster did not run it.
        """

    def download(self, target: Target, command: Sequence[str], to: BinaryIO) -> None:
        """Run a command as `lines` does, and write its binary output to a file."""

    def first_lines(self, target: Target) -> Sequence[str]:
        """Return what the job printed before the first attempt."""

    def command_on(self, target: Target, host: str, command: Sequence[str]) -> Sequence[str]:
        """Return the arguments that run a command where a rank runs, as `Scheduler.command_on`."""
