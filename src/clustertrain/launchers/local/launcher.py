"""This machine as a launcher: a submitted run is a process in the background.

It runs a snapshot of job and code, as the job of a scheduler does. It waits only for those before it in its
sweep: what this machine has no room for is refused.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from clustertrain import variables
from clustertrain.errors import ClusterError
from clustertrain.job.file import dump_job
from clustertrain.job.model import Job
from clustertrain.job.references import check_set
from clustertrain.job.site import SiteJob
from clustertrain.launchers.check import check_training_installed, placing
from clustertrain.launchers.known_runs import KnownRun, state_file
from clustertrain.launchers.launcher import Launcher
from clustertrain.launchers.local.run import allocation_notes
from clustertrain.launchers.local.turn import START, TURN, job_id_of, pid_of, waits
from clustertrain.launchers.one_host import ray_address, world_sizes_here
from clustertrain.launchers.scheduler.interface import Answer, Handle, JobState, Meaning, Plan, Scheduler
from clustertrain.launchers.shell import start_in_background
from clustertrain.node.processes import Process, process_of, this_host
from clustertrain.run.admission import Options
from clustertrain.run.command_line import CommandLine
from clustertrain.run.records import SchedulerStart
from clustertrain.storage.posix import refused
from clustertrain.waiting import wait_until

_KILLED_AFTER_S = 30.0
_POLL_S = 0.2


@dataclass(frozen=True)
class ProcessState(JobState):
    """The state of a process.

    A process that has ended has no state: the storage shows how its run ended.
    """

    meanings: ClassVar = {
        "RUNNING": Meaning("running", "training", "runs"),
        "PENDING": Meaning("queued", "scheduler", "waits"),
    }

    @classmethod
    def of(cls, job_id: str, pid: int) -> ProcessState:
        host = socket.gethostname()
        if waits(pid):
            return cls(job_id, "PENDING", "a run before it in the sweep has not ended", cluster=host)
        return cls(job_id, "RUNNING", nodes=host, cluster=host)

    @property
    def before_its_attempt(self) -> Meaning:
        return Meaning("waiting", "nodes", "started; it has not begun its attempt yet")


class LocalScheduler(Scheduler):
    """Runs in the background. The ID of a job is its process's pid and start time."""

    name = "local"
    label = "local"

    @property
    def is_elsewhere(self) -> bool:
        return bool(ray_address())

    def cluster_text(self, handle: Handle) -> str:
        return ""

    def plan(self, job: SiteJob, options: Options) -> Plan:
        program = (TURN, *options.after) if options.after else (START,)
        return Plan(dump_job(job, defaults=True).encode(), (sys.executable, "-P", "-m", *program))

    def preflight(self, job: SiteJob, plan: Plan, command: CommandLine) -> Sequence[str]:
        check_training_installed("submit --to local")
        with placing(command):
            check_set(job.start_texts, os.environ)
        world_sizes_here(job)
        return allocation_notes(replace(command, start="run"))

    def submit(self, job: SiteJob, plan: Plan, submission: str, command: CommandLine) -> Handle:
        output = _output_file(job)
        environ = {**os.environ, variables.SUBMISSION: submission}
        pid = start_in_background(plan.argv, output, environ=environ)
        process = process_of(pid)
        if process is None and (printed := output.read_text(errors="replace").strip()):
            raise ClusterError(f"The run in the background ended at once. It printed:\n{printed}")
        return Handle(job_id_of(process or Process(this_host(), pid, 0)), socket.gethostname(), str(output))

    def states(self, jobs: Sequence[Handle]) -> Answer:
        pids = {job.job_id: pid_of(job.job_id) for job in jobs}
        found = {job_id: ProcessState.of(job_id, pid) for job_id, pid in pids.items() if pid is not None}
        return Answer(found, cluster=socket.gethostname())

    def argv_on(self, start: SchedulerStart | None, host: str, command: Sequence[str]) -> Sequence[str]:
        if host != socket.gethostname():
            raise ClusterError(f"The rank is on {host}, and this is {socket.gethostname()}.\nLog in there.")
        return command

    def cancel(self, job: Handle, *, only_waiting: bool = False) -> None:
        """Request that the run saves and ends; what is left of it after 30 s is killed."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            pid = pid_of(job.job_id)
            if pid is None or (only_waiting and not waits(pid)):
                return
            try:
                os.kill(pid, number)
            except PermissionError:
                raise ClusterError(f"Process {pid} belongs to another user.\nAsk that user.") from None
            except ProcessLookupError:  # it has ended at this moment
                return
            wait_until(lambda: pid_of(job.job_id) is None, _KILLED_AFTER_S, _POLL_S)


def _output_file(job: SiteJob) -> Path:
    """Create an empty file for the output of the submitted run, and return its path.

    Raises:
        StorageError: it cannot be written.
    """
    path = state_file(KnownRun.of(job, "", "local"), ".out")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_bytes(b"")
    except OSError as error:
        raise refused(path, "written", error) from error
    return path


class LocalLauncher(Launcher):
    """The launcher for runs of `clustertrain run` and of submissions to this machine.

    It also shows runs of any launcher, from their files.
    """

    def merged(self, job: Job) -> SiteJob:
        return SiteJob(job)  # as for `run`: the defaults of a site are those of its clusters


LAUNCHER = LocalLauncher(LocalScheduler())
