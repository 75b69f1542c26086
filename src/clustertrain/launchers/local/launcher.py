"""This machine as a launcher: a submitted run is a process in the background.

It runs a snapshot of job and code, as the job of a scheduler does. It never waits: what this machine has no
room for is refused.
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
    """The state of a process. One that has ended has none: how its run ended is in the storage."""

    meanings: ClassVar = {"RUNNING": Meaning("running", "training", "runs")}

    @property
    def before_its_attempt(self) -> Meaning:
        return Meaning("waiting", "nodes", "started; it has not begun its attempt yet")


class LocalScheduler(Scheduler):
    """Runs in the background. The ID of a job is its process's pid and start time."""

    name = "local"
    label = "local"
    state = ProcessState

    @property
    def is_elsewhere(self) -> bool:
        return bool(ray_address())

    def cluster_text(self, handle: Handle) -> str:
        return ""

    def plan(self, job: SiteJob, options: Options) -> Plan:
        program = (sys.executable, "-m", "clustertrain.launchers.local.start")
        return Plan(dump_job(job, defaults=True).encode(), program)

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
        host = socket.gethostname()
        running = (job.job_id for job in jobs if _pid(job) is not None)
        found = {each: ProcessState(each, "RUNNING", nodes=host, cluster=host) for each in running}
        return Answer(found, cluster=host)

    def argv_on(self, start: SchedulerStart | None, host: str, command: Sequence[str]) -> Sequence[str]:
        if host != socket.gethostname():
            raise ClusterError(f"The rank is on {host}, and this is {socket.gethostname()}.\nLog in there.")
        return command

    def cancel(self, job: Handle, *, only_waiting: bool = False) -> None:
        """Request that the run saves and ends; what is left of it after 30 s is killed."""
        if only_waiting:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            if (pid := _pid(job)) is None:
                return
            try:
                os.kill(pid, number)
            except PermissionError:
                raise ClusterError(f"Process {pid} belongs to another user.\nAsk that user.") from None
            except ProcessLookupError:  # it has ended at this moment
                return
            wait_until(lambda: _pid(job) is None, _KILLED_AFTER_S, _POLL_S)


def job_id_of(process: Process) -> str:
    """The ID of the job that this process is."""
    return f"{process.pid}-{process.pid_started_ticks}"


def _pid(job: Handle) -> int | None:
    """The pid of a job that runs on this host, or None."""
    pid = int(job.job_id.partition("-")[0])
    process = process_of(pid)
    return pid if process is not None and job_id_of(process) == job.job_id else None


def _output_file(job: SiteJob) -> Path:
    """An empty file for what the submitted run prints.

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
    """Runs of `clustertrain run` and of submissions to this machine; and runs of any launcher, as their files
    show them."""

    def merged(self, job: Job) -> SiteJob:
        return SiteJob(job)  # as for `run`: the defaults of a site are those of its clusters


LAUNCHER = LocalLauncher(LocalScheduler())
