"""Stops a run in a scheduler: the run saves and ends, and the scheduler does not start it again.

queued   its job is cancelled, and the storage records this, because a scheduler forgets its jobs
running  the run gets a request to save and end; a job that remains afterwards is cancelled
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

from clustertrain.errors import ClusterError, JobError
from clustertrain.launchers.scheduler.interface import Sent, State
from clustertrain.launchers.scheduler.run_state import may_go_on
from clustertrain.launchers.scheduler.status import QueuedStatus, Registered, ask, blaming, status_of
from clustertrain.node.waiting import wait_until
from clustertrain.observe.status import Status
from clustertrain.run_files.claims import who_runs
from clustertrain.run_files.folder.run_dir import Attempt, RunDir
from clustertrain.run_files.recorded_job import job_of
from clustertrain.run_files.records.requests import StopRequest
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.records.scheduler import Cancellation

BEYOND_GRACE_S = 60.0
_RESULT_POLL_S = 1.0
_JOB_ENDS_WITHIN_S = 30.0  # after the result: Ray ends; after a cancellation also the scheduler's grace time
_QUEUE_POLL_S = 2.0


def stop_run(queue: Registered, run: RunDir, echo: Callable[[str], None], *, wait: bool = True) -> None:
    """Request that a run finishes its step, saves and ends; cancel its jobs that wait in the queue.

    Args:
        wait: wait until the run has ended, at most failures.grace + 60 s; then cancel its job if it remains.

    Raises:
        JobError: the run has no process, and no job in the scheduler.
        ClusterError: its job waits in the queue, and the scheduler does not answer.
    """
    _Stop(queue, run, echo).stop(wait=wait)


@dataclass(frozen=True)
class _Stop:
    queue: Registered
    run: RunDir
    echo: Callable[[str], None]

    def stop(self, *, wait: bool) -> None:
        status = status_of(self.queue, self.run)
        for job in status.waiting_jobs if isinstance(status, QueuedStatus) else ():
            self._cancel(job.sent)
        if status.state == "queued":
            self._cancel(self._job(status))
            status = status_of(self.queue, self.run)
            if status.standing.over:
                return
        ended = status.result is not None and not _may_start_again(status.result)
        # A process of another machine that is lost is put back by nobody.
        if status.standing.over or ended or (status.runner is None and self.queue.scheduler.runs_here):
            raise _not_running(status)
        if status.runner is None:  # its job is being requeued, or the scheduler does not answer
            self._cancel_remaining(self._job(status))
            return
        if status.attempt is None or (status.standing.cause == "nodes" and who_runs(status.attempt) is None):
            self._cancel_without_an_attempt(self._job(status))
            return
        _request_stop(status.attempt, status, self.echo)
        if wait:
            self._wait_for_the_end(status.attempt, status)

    def _cancel(self, job: Sent) -> None:
        """Cancel a job that waits; no effect if it has started meanwhile."""
        with blaming(self.queue, "cancel_waiting"):
            self.queue.scheduler.cancel_waiting(job)
        state = self._wait_in_queue(job, lambda state: state is None or not state.is_waiting)
        if state is None or state.phase == "cancelled":
            self._record_cancellation(job)
            self.echo(f"{self._named(job)} was cancelled in the queue")
        elif state.is_waiting:
            raise ClusterError(
                f"{self._named(job)} was cancelled without effect: it is still {state.text}.\nTry again."
            )

    def _cancel_without_an_attempt(self, job: Sent) -> None:
        with blaming(self.queue, "cancel"):
            self.queue.scheduler.cancel(job)
        state = self._wait_in_queue(job, lambda state: state is None or state.is_over)
        has_begun = self.run.newest_attempt() is not None
        if not has_begun and (state is None or state.phase == "cancelled"):
            self._record_cancellation(job)
        nothing = "" if has_begun else ": there was nothing to save yet"
        self.echo(f"{self._named(job)} was cancelled{nothing}")

    def _job(self, status: Status) -> Sent:
        """Return the job to cancel.

        Raises:
            ClusterError: the scheduler does not show the state of the job.
        """
        if not isinstance(status, QueuedStatus) or status.job.queue is None:
            label = self.queue.scheduler.label
            why = status.note or f"{label} does not list its job"
            raise ClusterError(
                f"{status.run.name} is {status.state}, and {why}.\n"
                f"Only {label} can cancel a waiting job: try again, or on a login node of the job's cluster."
            )
        return status.job.sent

    def _named(self, job: Sent) -> str:
        return f"{self.queue.scheduler.label} job {job.job_id}"

    def _record_cancellation(self, job: Sent) -> None:
        who = f"{os.environ.get('USER', os.getuid())} on {socket.gethostname()}"  # a uid may have no name
        self.run.cancellation(self.queue.name, job.job_id).create(Cancellation(by=who))

    def _wait_for_the_end(self, attempt: Attempt, status: Status) -> None:
        result = _wait_for_result(attempt, self.echo)
        if isinstance(status, QueuedStatus):
            job = status.job.sent
            try:
                self._cancel_remaining(job, ended=result is not None)
            except ClusterError as error:
                self.echo(f"warning: it is not known whether {self._named(job)} has ended: {error}")

    def _cancel_remaining(self, job: Sent, *, ended: bool = True) -> None:
        """Cancel a job that does not end on its own, or waits for a restart."""
        state = self._state(job)
        if ended:  # the run has its result: its job gets time to end on its own
            state = self._wait_in_queue(job, lambda state: state is None or state.is_over or state.is_waiting)
        if state is None or state.is_over:
            return
        with blaming(self.queue, "cancel"):
            self.queue.scheduler.cancel(job)
        self.echo(f"{self._named(job)} was {state.word}: cancelled")
        if state.is_waiting:
            self._record_cancellation(job)

    def _wait_in_queue(self, job: Sent, condition: Callable[[State | None], bool]) -> State | None:
        """Wait at most 30 s until the job meets the condition, and return its state; None if it is purged."""
        return wait_until(lambda: self._state(job), _JOB_ENDS_WITHIN_S, _QUEUE_POLL_S, condition)

    def _state(self, job: Sent) -> State | None:
        answer = ask(self.queue, [job])
        if answer.no_answer is not None:
            raise ClusterError(f"{answer.no_answer}.\nTry again.")
        return answer.states.get(job.job_id)


def _may_start_again(result: Result) -> bool:
    """Return whether the job of a run with this result may start again: its scheduler has ended it."""
    return may_go_on(result) or result.cause in ("terminated", "time_limit")


def _not_running(status: Status) -> JobError:
    """Return the error of `stop` for a run that is not running."""
    number = f"attempt {status.attempt.n} is " if status.attempt else "it is "
    return JobError(f"{status.run.name} is not running: {number}{status.state}.\nThere is nothing to stop.")


def _request_stop(attempt: Attempt, status: Status, echo: Callable[[str], None]) -> None:
    """Write the stop request; the workers read it between two steps."""
    attempt.stop.write(StopRequest("user"))
    job = job_of(attempt)
    how = "the run saves and ends"
    if job is not None and job.is_script:
        how = f"the script gets SIGTERM, and SIGKILL after {job.failures.grace_s:g} s"
    echo(f"sent a stop request to {status.runner}: {how}")


def _wait_for_result(attempt: Attempt, echo: Callable[[str], None]) -> Result | None:
    """Wait at most failures.grace + 60 s for the result of the attempt, print it and return it, or None."""
    job = job_of(attempt)
    within_s = (job.failures.grace_s if job is not None else 0.0) + BEYOND_GRACE_S
    result = wait_until(attempt.result.read, within_s, _RESULT_POLL_S)
    if result is None:
        echo(f"it has not ended within {within_s:g} s")
        return None
    step = f" at step {result.step}" if result.step else ""
    echo(f"{attempt.run.name}: {result.state} ({result.cause}){step}")
    return result
