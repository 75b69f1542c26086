"""Ending a run from outside: ask it to save and end, and see to it that its scheduler starts it no more.

queued ─▶ cancelled at the scheduler, and written down, since SLURM forgets
running ─▶ asked; when it has ended, or not in time, its job is cancelled if it is still there
"""

from __future__ import annotations

import getpass
import json
import socket
import time
from collections.abc import Callable

from clustertrain.errors import ClusterError, JobError
from clustertrain.job.file import parse_job
from clustertrain.launchers.slurm.queue import QueueState, cancel, look_up
from clustertrain.observe.status import Status, status_of, taken_out_key
from clustertrain.run.folder import Attempt, RunDir
from clustertrain.run.result import Result, read_result

_BEYOND_GRACE_S = 60.0
_LEAVING_S = 30.0  # for what comes after a result: Ray's end, and KillWait where it was cancelled
_POLL_S = 1.0
_QUEUE_POLL_S = 2.0


def stop_run(run: RunDir, say: Callable[[str], None], *, wait: bool = True) -> None:
    """Ask a run to finish its step, save and end; where it waits in a queue, take it out.

    Args:
        wait: until it has ended, failures.grace + 60 s at most; then its job is cancelled at the scheduler.

    Raises:
        JobError: nobody runs it, and no scheduler has it.
        ClusterError: it waits in a queue, and the scheduler does not answer.
    """
    status = status_of(run)
    for job in status.behind:
        _take_out(run, job.job_id, say)
    if status.state == "queued":
        _take_out(run, _job_id(status), say)
        status = status_of(run)
        if status.standing.over:
            return
    if status.result is not None and not status.standing.over:  # on its way back into the queue
        _see_it_off(run, _job_id(status), say)
        return
    if status.runner is None:
        number = f"attempt {status.attempt.n} is " if status.attempt else "it is "
        raise JobError(f"{run.name} does not run: {number}{status.state}.\nThere is nothing to stop.")
    if status.attempt is None or status.standing.cause == "nodes":
        _cancel_before_its_attempt(run, _job_id(status), say)
        return
    status.attempt.ask("stop", {"cause": "user", "time": time.time()})
    say(f"asked {status.runner} to save and end")
    if wait:
        _wait_for_the_end(status.attempt, status, say)


def _take_out(run: RunDir, job_id: str, say: Callable[[str], None]) -> None:
    """Cancel a job that waits; where it started meanwhile it is left alone."""
    cancel(job_id, only_waiting=True)
    job = _wait_in_queue(job_id, lambda job: job is None or not job.is_waiting)
    if job is None or job.native == "CANCELLED":
        _write_down(run, job_id)
        say(f"SLURM job {job_id} was taken out of the queue")
    elif job.is_waiting:
        raise ClusterError(f"SLURM was told to cancel job {job_id}, and it still is {job.text}.\nTry again.")


def _cancel_before_its_attempt(run: RunDir, job_id: str, say: Callable[[str], None]) -> None:
    cancel(job_id)
    job = _wait_in_queue(job_id, lambda job: job is None or job.is_over)
    if run.newest_attempt() is None and (job is None or job.native == "CANCELLED"):
        _write_down(run, job_id)
    say(f"SLURM job {job_id} was cancelled: there was nothing to save yet")


def _job_id(status: Status) -> str:
    """The job to cancel.

    Raises:
        ClusterError: the scheduler does not say what became of it.
    """
    if status.job is None or status.job.queue is None:
        raise ClusterError(
            f"{status.run.name} is {status.state}, and {status.note or 'no scheduler has it'}.\n"
            "A job that waits can only be cancelled at its scheduler: try again, or on its login node."
        )
    return status.job.job_id


def _write_down(run: RunDir, job_id: str) -> None:
    who = f"{getpass.getuser()} on {socket.gethostname()}"
    record = {"state": "cancelled", "cause": "cancelled", "time": time.time(), "by": who}
    run.store.create_exclusive(taken_out_key(run, job_id), json.dumps(record, indent=1).encode() + b"\n")


def _wait_for_the_end(attempt: Attempt, status: Status, say: Callable[[str], None]) -> None:
    within_s = _grace_s(attempt) + _BEYOND_GRACE_S
    result = _wait_for_result(attempt, within_s)
    if result is not None:
        step = f" at step {result.step}" if result.step else ""
        say(f"{attempt.run.name}: {result.state} ({result.cause}){step}")
    else:
        say(f"it has not ended within {within_s:g} s")
    if status.job is not None:
        try:
            _see_it_off(attempt.run, status.job.job_id, say, ended=result is not None)
        except ClusterError as error:
            say(f"warning: whether SLURM job {status.job.job_id} is gone is not known: {error}")


def _wait_for_result(attempt: Attempt, within_s: float) -> Result | None:
    ends = time.monotonic() + within_s
    while (result := read_result(attempt)) is None and time.monotonic() < ends:
        time.sleep(_POLL_S)
    return result


def _see_it_off(run: RunDir, job_id: str, say: Callable[[str], None], *, ended: bool = True) -> None:
    """Cancel a job that does not end by itself, or waits to be started again."""
    job = look_up([job_id]).get(job_id)
    if ended:  # it has a moment to go by itself
        job = _wait_in_queue(job_id, lambda job: job is None or not job.has_nodes)
    if job is None or job.is_over:
        return
    cancel(job_id)
    say(f"SLURM job {job_id} was {job.native}: cancelled")
    if job.is_waiting:
        _write_down(run, job_id)


def _wait_in_queue(job_id: str, wanted: Callable[[QueueState | None], bool]) -> QueueState | None:
    """The job once it is as wanted, or as it is after half a minute; None where SLURM has forgotten it."""
    ends = time.monotonic() + _LEAVING_S
    while not wanted(job := look_up([job_id]).get(job_id)) and time.monotonic() < ends:
        time.sleep(_QUEUE_POLL_S)
    return job


def _grace_s(attempt: Attempt) -> float:
    key = f"{attempt.key}/job.yaml"
    text = attempt.run.store.read_or_none(key)
    return parse_job(text.decode(), key).failures.grace_s if text is not None else 0.0
