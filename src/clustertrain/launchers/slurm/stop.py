"""Stops a run on SLURM: the run saves and ends, and SLURM does not start it again.

queued   its job is cancelled, and the storage records this, because SLURM purges its jobs
running  the run gets a request to save and end; a job that remains afterwards is cancelled
"""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable

from clustertrain.errors import ClusterError
from clustertrain.launchers.slurm.queue import QueueState, cancel, query_squeue
from clustertrain.launchers.slurm.status import SlurmStatus, status_of
from clustertrain.launchers.stop import not_running, request_user_stop, wait_for_result
from clustertrain.observe.status import Status
from clustertrain.run.folder import Attempt, RunDir
from clustertrain.run.records import Cancellation
from clustertrain.waiting import wait_until

_JOB_ENDS_WITHIN_S = 30.0  # after the result: Ray ends; after a cancellation also KillWait
_QUEUE_POLL_S = 2.0


def stop_run(run: RunDir, echo: Callable[[str], None], *, wait: bool = True) -> None:
    """Request that a run finishes its step, saves and ends; cancel its jobs that wait in the queue.

    Args:
        wait: wait until the run has ended, at most failures.grace + 60 s; then cancel its job if it remains.

    Raises:
        JobError: the run has no process, and no job in SLURM.
        ClusterError: its job waits in the queue, and SLURM does not answer.
    """
    status = status_of(run)
    for job in status.waiting_jobs if isinstance(status, SlurmStatus) else ():
        _cancel(run, job.job_id, echo)
    if status.state == "queued":
        _cancel(run, _job_id(status), echo)
        status = status_of(run)
        if status.standing.over:
            return
    if status.result is not None and not status.standing.over:  # its job is being requeued
        _cancel_remaining(run, _job_id(status), echo)
        return
    if status.runner is None:
        raise not_running(status)
    if status.attempt is None or status.standing.cause == "nodes":
        _cancel_before_its_attempt(run, _job_id(status), echo)
        return
    request_user_stop(status.attempt, status, echo)
    if wait:
        _wait_for_the_end(status.attempt, status, echo)


def _cancel(run: RunDir, job_id: str, echo: Callable[[str], None]) -> None:
    """Cancel a job that waits; no effect if it has started meanwhile."""
    cancel(job_id, only_waiting=True)
    job = _wait_in_queue(job_id, lambda job: job is None or not job.is_waiting)
    if job is None or job.native == "CANCELLED":
        _record_cancellation(run, job_id)
        echo(f"SLURM job {job_id} was cancelled in the queue")
    elif job.is_waiting:
        raise ClusterError(f"scancel {job_id} had no effect: the job is still {job.text}.\nTry again.")


def _cancel_before_its_attempt(run: RunDir, job_id: str, echo: Callable[[str], None]) -> None:
    cancel(job_id)
    job = _wait_in_queue(job_id, lambda job: job is None or job.is_over)
    if run.newest_attempt() is None and (job is None or job.native == "CANCELLED"):
        _record_cancellation(run, job_id)
    echo(f"SLURM job {job_id} was cancelled: there was nothing to save yet")


def _job_id(status: Status) -> str:
    """The ID of the job to cancel.

    Raises:
        ClusterError: the scheduler does not show the state of the job.
    """
    if not isinstance(status, SlurmStatus) or status.job.queue is None:
        raise ClusterError(
            f"{status.run.name} is {status.state}, and {status.note or 'SLURM does not list its job'}.\n"
            "Only SLURM can cancel a waiting job: try again, or on a login node of the job's cluster."
        )
    return status.job.job_id


def _record_cancellation(run: RunDir, job_id: str) -> None:
    who = f"{getpass.getuser()} on {socket.gethostname()}"
    run.cancellation("slurm", job_id).create(Cancellation(by=who))


def _wait_for_the_end(attempt: Attempt, status: Status, echo: Callable[[str], None]) -> None:
    result = wait_for_result(attempt, echo)
    if isinstance(status, SlurmStatus):
        job_id = status.job.job_id
        try:
            _cancel_remaining(attempt.run, job_id, echo, ended=result is not None)
        except ClusterError as error:
            echo(f"warning: it is not known whether SLURM job {job_id} has ended: {error}")


def _cancel_remaining(run: RunDir, job_id: str, echo: Callable[[str], None], *, ended: bool = True) -> None:
    """Cancel a job that does not end on its own, or waits for a restart."""
    job = query_squeue([job_id]).get(job_id)
    if ended:  # the run has its result: its job gets time to end on its own
        job = _wait_in_queue(job_id, lambda job: job is None or not job.has_nodes)
    if job is None or job.is_over:
        return
    cancel(job_id)
    echo(f"SLURM job {job_id} was {job.native}: cancelled")
    if job.is_waiting:
        _record_cancellation(run, job_id)


def _wait_in_queue(job_id: str, condition: Callable[[QueueState | None], bool]) -> QueueState | None:
    """Wait at most 30 s until the job meets the condition. Returns the job; None if SLURM has purged it."""
    job: QueueState | None = None

    def is_met() -> bool:
        nonlocal job
        job = query_squeue([job_id]).get(job_id)
        return condition(job)

    wait_until(is_met, _JOB_ENDS_WITHIN_S, _QUEUE_POLL_S)
    return job
