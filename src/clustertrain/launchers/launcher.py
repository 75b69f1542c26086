"""The launcher: the commands of clustertrain over the operations of a scheduler (scheduler/interface.py).

In: a job or a run, from api.py and cli/. Out: calls of the scheduler, which starts scheduler/start.py on the
first host of the job. lookup.py makes a launcher of a plug-in (job/launcher_plugins.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from clustertrain.job.model import Job
from clustertrain.job.site import SiteJob, with_site
from clustertrain.launchers.check import placing
from clustertrain.launchers.known_runs import KnownRun, by_folder, record_known_run
from clustertrain.launchers.scheduler.interface import Scheduler
from clustertrain.launchers.scheduler.on_rank import exec_on_rank
from clustertrain.launchers.scheduler.status import Registered, status_of, statuses
from clustertrain.launchers.scheduler.stop import stop_run
from clustertrain.launchers.scheduler.submit import idle_workers, notes_of, script_of, submit, what_next
from clustertrain.launchers.shell import CommandFailed, CommandMissing, Unanswered
from clustertrain.launchers.target import Echo, Reach, Target
from clustertrain.observe.logs import LogSelection, log_lines
from clustertrain.observe.status import RunFiles, Status, read_files
from clustertrain.observe.status_json import StoredStatus
from clustertrain.observe.wait import follow_to_its_end
from clustertrain.run_files.admission import Options
from clustertrain.run_files.command_line import CommandLine
from clustertrain.run_files.folder.run_dir import RunDir


class Launcher:
    """Checks, submits and observes the jobs of one scheduler.

    `name`: of the entry point. `reach`: the way to the storage of the runs; None if this machine reads that
    storage itself. With a way it is a LauncherElsewhere (elsewhere.py).
    """

    reach: Reach | None = None

    def __init__(self, name: str, scheduler: Scheduler) -> None:
        self.name, self.scheduler = name, scheduler
        self.queue = Registered(name, scheduler, reads_storage=self.reach is None)

    def merged(self, job: Job) -> SiteJob:
        """Return the job with the defaults of the site, which are those of its clusters.

        Raises:
            JobError: the site file is wrong, or its defaults and the job are inconsistent.
        """
        return SiteJob(job) if self.scheduler.runs_here else with_site(job)

    def check(self, job: SiteJob, command: CommandLine) -> list[str]:
        """Check a job, submit nothing, and return lines with the findings.

        Raises:
            JobError: the scheduler would refuse the job.
            ClusterError: the scheduler answers, and could never start the job.
        """
        notes = idle_workers(self.queue, job)
        script = script_of(self.queue, job, Options(command=command))
        submit_it = command.on_job(f"submit --to {self.name}")
        end = f"{command.job_file} can be submitted: `{submit_it}`"
        try:
            with placing(command):
                for note in notes_of(self.queue, job, script):
                    notes.append(note)
        except (CommandMissing, CommandFailed, Unanswered) as error:
            if isinstance(error, CommandFailed) and error.code is not None:  # it answered, and refused
                raise
            notes.append(f"not checked against the cluster: {error}")
            end = f"{command.job_file} can be rendered; `{submit_it}` checks it against the cluster"
        return [*(f"note: {note}" for note in notes), end]

    def render(self, job: SiteJob, command: CommandLine, note: Echo) -> str:
        """Return the exact text that `submit` sends; `note` is called with what this text does not show.

        Raises:
            JobError: the job cannot be rendered.
        """
        script = script_of(self.queue, job, Options(command=command))
        if command.sets and self.reach is None:
            note(f"note: submitted by hand, the job reads {command.job_file} without the changes of --set")
        return script

    def submit(self, job: SiteJob, options: Options, echo: Echo) -> Target | None:
        """Check a job, submit it, record its run, and print the next commands.

        Return the run; None if it is already finished.

        Raises:
            ClusterTrainError: it was not submitted.
        """
        if (sent := submit(self.queue, job, options, echo)) is None:
            return None
        command = options.command
        known = KnownRun.of(job, command.job_file, self.name, self.where(sent.place), sent.job_id)
        there = self.reach.storage_of(job) if self.reach is not None else ""
        known = replace(known, place=dict(sent.place), storage_there=there)
        if (problem := record_known_run(known)) is not None:
            echo(f"note: {problem}")
        echo(what_next(self.queue, job.name, sent, by_folder(command, known)))
        return Target(command.job_file, job, known, sets=command.sets)

    def where(self, place: Mapping[str, str]) -> str:
        """Name the cluster of a job; empty for this machine."""
        if self.scheduler.runs_here:
            return ""
        return " ".join([self.scheduler.label, *(f"{key} {value}" for key, value in place.items() if value)])

    def follow(self, target: Target, echo: Echo) -> int:
        """Print each change of state until the run has ended, and return the exit code of the run."""
        command = target.command(f"submit --to {self.name}")
        return follow_to_its_end(target.visible_run(), self._status_of, command, echo)

    def status(self, target: Target) -> StoredStatus:
        """Return the status of the run, with the table of `status`."""
        files = target.files or read_files(target.visible_run())
        return StoredStatus.of(self.statuses([files])[0])

    def logs(self, target: Target, selection: LogSelection, *, follow: bool) -> Iterator[str]:
        """Return the lines of `logs`, oldest first."""
        return log_lines(target.visible_run(), selection, self._status_of, follow=follow)

    def stop(self, target: Target, echo: Echo, *, wait: bool) -> None:
        """Request that the run saves and ends; cancel its job if that waits in a queue."""
        return stop_run(self.queue, target.visible_run(), echo, wait=wait)

    def exec(self, target: Target, rank: int, command: Sequence[str]) -> int:
        """Run a command on the node of a rank, with this terminal, and return its exit code."""
        return exec_on_rank(self.queue, target.visible_run(), rank, command)

    def statuses(self, runs: Sequence[RunFiles]) -> list[Status]:
        """Return the statuses of runs in a storage that this machine reads."""
        return statuses(self.queue, runs)

    def _status_of(self, run: RunDir) -> Status:
        return status_of(self.queue, run)
