"""Derives the state of a run from its files and the state of its job. It reads no file and no clock.

`result.json` of the newest attempt determines how the run ended. Only the scheduler shows that a job waits,
was requeued, or died without a result. Its answer is never used for the outcome of the training: KubeRay can
report success for a job that still runs, and a failure for one that continues in another Ray cluster.

    job in the scheduler    newest attempt, if by this start of the job   state of the run
    waits                   (any)                                         queued
    has nodes               has a result                                  that of the result; waiting if
                                                                          it goes on in the same job
                            has none                                      that of its events
                            does not exist yet                            waiting
    over                    has a result                                  that of the result
                            has none, or does not exist                   as the scheduler says; lost if it
                                                                          says success
    purged, or no answer    has a result                                  that of the result
                            has none                                      by the heartbeat
                            does not exist                                lost; queued without an answer
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from clustertrain.launchers.scheduler.interface import JobState
from clustertrain.observe.run_state import Ended, RunState, alive, of_result
from clustertrain.run.states import CAUSE_OF_CODE, STATES


@dataclass(frozen=True)
class Files:
    """The facts about a run in its storage.

    Attributes:
        scheduler: how messages name the scheduler.
        job_id: the ID of the run's job in the scheduler.
        attempt: the number of the newest attempt, or None.
        is_of_job: whether a start of that job claimed that attempt.
        restart: the number of requeues before that start; 0 is the first start.
        result: the result of that attempt, or None if it has not ended.
        live: the state of the attempt by its events: waiting, staging or running; lost if that was read and
            no process of it lives.
        cancelled: whether the job is known to be cancelled before it began or continued.
        text: the reason of `live`.
        are_read: whether the storage could be read.
        job_name: how texts name the job; by default with the scheduler and the ID.
    """

    scheduler: str
    job_id: str
    attempt: int | None = None
    is_of_job: bool = False
    restart: int = 0
    result: Ended | None = None
    live: str = "waiting"
    cancelled: bool = False
    text: str = ""
    are_read: bool = True
    job_name: str = ""

    @property
    def job_text(self) -> str:
        return self.job_name or f"{self.scheduler} job {self.job_id}"


def standing_of(
    files: Files, job: JobState | None, no_answer: str | None, who_runs: Callable[[], str | None]
) -> RunState:
    """Return the standing of a run whose job is, or was, in a scheduler.

    Args:
        job: None if the scheduler has purged it, or does not answer.
        no_answer: the reason if the scheduler does not answer, or None if it does.
        who_runs: returns the process that writes the heartbeat. It is slow, and is called only if nothing
            else determines the state.
    """
    if job is None:
        return _by_the_files(files, no_answer, who_runs)
    if job.is_waiting:
        return _queued(files, job)
    if job.is_over:
        return _after_its_end(files, job)
    return _with_nodes(files, job)


def _queued(files: Files, job: JobState) -> RunState:
    again = f"; {job.again} {files.attempt}" if files.is_of_job else ""
    if again and files.result is not None and files.result.cause == "node_fail":
        again += f": {files.result.text.partition(chr(10))[0]}"
    cause = "requeued" if files.is_of_job and job.meaning.cause == "scheduler" else job.meaning.cause
    return RunState("queued", cause, f"{job.why_it_waits}{again}")


def _with_nodes(files: Files, job: JobState) -> RunState:
    runner = files.job_text + (f" on {job.nodes}" if job.nodes else "")
    # A scheduler may count the restart at the requeue, while the previous start is still ending.
    has_attempt = files.is_of_job and (job.meaning.phase == "ending" or _is_this_start(files, job))
    if has_attempt and files.result is not None:
        state, cause = files.result.state, files.result.cause
        if job.stays and STATES[state].restarts:
            ended = f"attempt {files.attempt} ended as {state} ({cause}), and the run continues"
            return RunState("waiting", "nodes", "\n".join(filter(None, (job.trouble, ended))), runner=runner)
        return of_result(files.result, over=_is_settled(files))
    if job.meaning.state == "waiting":
        return RunState("waiting", job.meaning.cause, job.trouble, runner=runner)
    if not has_attempt:
        before = job.before_its_attempt
        return RunState(before.state, before.cause, job.trouble or before.text, runner=runner)
    if files.live == "lost":
        silent = f"attempt {files.attempt} has no heartbeat; {files.scheduler} has not reported how it ended"
        return RunState("waiting", "nodes", job.trouble or silent, runner=runner)
    return alive(files.live, runner, job.trouble or files.text)


def _after_its_end(files: Files, job: JobState) -> RunState:
    meaning, result, succeeded = job.meaning, files.result, job.meaning.phase == "succeeded"
    is_reported = succeeded or _is_settled(files) or _is_this_start(files, job)
    # A start of a run that is done claims no attempt, and its job ends with 0.
    had_nothing_to_do = succeeded and result is not None and result.state == "done"
    if result is not None and (had_nothing_to_do or (files.is_of_job and is_reported)):
        if (result.state, meaning.cause) == ("preempted", "time_limit"):
            why = f"{meaning.text}; submit it again to continue"
            return RunState("stopped", "time_limit", why, over=True, of_result=True)
        return of_result(result, over=True)
    began = files.is_of_job and _is_this_start(files, job)
    if meaning.phase == "failed" and not began and job.exit_code in STATES["failed"].exit_codes:
        cause = CAUSE_OF_CODE.get(job.exit_code, "error")
        text = f"{files.job_text} ended with exit code {job.exit_code} before an attempt: see its output"
        return RunState("failed", cause, text, over=True)
    if meaning.state == "done" and files.are_read:
        text = f"{files.job_text} {meaning.text} and left no result"
        return RunState("lost", "vanished", text, over=True)
    return RunState(meaning.state, meaning.cause, job.end_of(files.job_text), over=True)


def _by_the_files(files: Files, no_answer: str | None, who_runs: Callable[[], str | None]) -> RunState:
    if not files.are_read:
        text = f"{files.job_text} is gone, and its storage was not read"
        return RunState("lost", "vanished", text, over=True)
    if files.cancelled and not (files.is_of_job and _is_settled(files)):
        return RunState("cancelled", "cancelled", f"{files.job_text} was cancelled", over=True)
    if not files.is_of_job:
        return _never_started(files, no_answer)
    if files.result is not None:
        unknown = no_answer is not None and not _is_settled(files)
        text = "it is not known whether its job was requeued" if unknown else ""
        return of_result(files.result, over=not unknown, text=text)
    runner = who_runs()
    if runner is not None:
        return alive(files.live, runner, files.text)
    return RunState("lost", "vanished", "it has no heartbeat, and wrote no result", over=no_answer is None)


def _never_started(files: Files, no_answer: str | None) -> RunState:
    if no_answer is not None:
        return RunState("queued", "scheduler", f"{files.job_text} was submitted; no attempt has begun")
    text = f"{files.scheduler} has purged job {files.job_id}, which began no attempt"
    return RunState("lost", "vanished", text, over=True)


def _is_this_start(files: Files, job: JobState) -> bool:
    """Return whether the newest attempt is of the current start of the job.

    After a requeue, the files of the previous start do not show the state of the new one.
    """
    return job.restarts is None or files.restart >= job.restarts


def _is_settled(files: Files) -> bool:
    """Return whether the newest attempt ended in a state after which no scheduler restarts it."""
    return files.result is not None and not STATES[files.result.state].restarts
