"""This machine as a launcher: a submitted run is a process in the background.

It runs a snapshot of job and code, as the job of a scheduler does. It waits only for those before it in its
sweep: what this machine has no room for is refused.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from clustertrain.errors import ClusterError
from clustertrain.job.file import dump_job
from clustertrain.job.references import check_set
from clustertrain.job.site import SiteJob
from clustertrain.launchers.check import check_training_installed
from clustertrain.launchers.known_runs import KnownRun, state_file
from clustertrain.launchers.local.turn import START, TURN, job_id_of, pid_of, place_here, waits
from clustertrain.launchers.one_host import world_sizes_here
from clustertrain.launchers.scheduler.interface import Scheduler, Sent, State
from clustertrain.launchers.scheduler.needs import Needs
from clustertrain.launchers.shell import start_in_background
from clustertrain.node import variables
from clustertrain.node.processes import Process, process_of, this_host
from clustertrain.node.waiting import wait_until
from clustertrain.storage.posix import refused

_KILLED_AFTER_S = 30.0
_POLL_S = 0.2


class LocalScheduler(Scheduler):
    """Runs in the background. The ID of a job is its process's pid and start time."""

    label = "local"
    max_hosts = math.inf  # of the user's own Ray cluster
    runs_here = True

    def script(self, job: SiteJob, needs: Needs) -> str:
        return dump_job(job, defaults=True)

    def check(self, job: SiteJob, script: str) -> Sequence[str]:
        check_training_installed("submit --to local")
        check_set(job.start_texts, os.environ)
        world_sizes_here(job)
        return ()

    def submit(self, job: SiteJob, script: str, environment: Mapping[str, str]) -> Sent:
        output, argv = _output_file(job), program_of(environment.get(variables.AFTER, "").split())
        pid = start_in_background(argv, output, environ={**os.environ, **environment})
        process = process_of(pid)
        if process is None and (printed := output.read_text(errors="replace").strip()):
            raise ClusterError(f"The run in the background ended at once. It printed:\n{printed}")
        return Sent(job_id_of(process or Process(this_host(), pid, 0)), str(output), place=place_here())

    def query(self, jobs: Sequence[Sent]) -> dict[str, State]:
        """Return the states of processes; one that has ended has none, and the storage shows how."""
        if not any(job.place == place_here() for job in jobs):
            where = jobs[0].place.get("host")
            raise ClusterError(f"This machine is {socket.gethostname()}, and the run's is {where}")
        pids = {job.job_id: pid_of(job.job_id) for job in jobs}
        return {job_id: _state_of(pid) for job_id, pid in pids.items() if pid is not None}

    def cancel(self, job: Sent) -> None:
        """Request that the run saves and ends; what is left of it after 30 s is killed."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if (pid := pid_of(job.job_id)) is None:
                return
            try:
                os.kill(pid, number)
            except PermissionError:
                raise ClusterError(f"Process {pid} belongs to another user.\nAsk that user.") from None
            except ProcessLookupError:  # it has ended at this moment
                return
            wait_until(lambda: pid_of(job.job_id) is None, _KILLED_AFTER_S, _POLL_S)


def program_of(after: Sequence[str]) -> list[str]:
    """Return the arguments of a submitted run, which waits for the end of these jobs."""
    return [sys.executable, "-P", "-m", *((TURN, *after) if after else (START,))]


def _state_of(pid: int) -> State:
    if waits(pid):
        return State("PENDING", "waits", "a run before it in the sweep has not ended")
    return State("RUNNING", "runs", hosts=socket.gethostname())


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


SCHEDULER = LocalScheduler()
