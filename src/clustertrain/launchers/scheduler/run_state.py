"""Derives the state of a run from its files and the state of its job. It reads no file and no clock.

`result.json` of the newest attempt determines how the run ended. Only the scheduler shows that a job waits,
was requeued, or died without a result. Its answer is never used for the outcome of the training: KubeRay can
report success for a job that still runs, and a failure for one that continues in another Ray cluster.

    job in the scheduler    newest attempt, if by this start of the job   state of the run
    waits                   (any)                                         queued
    has hosts               has a result                                  that of the result, and not over;
                                                                          waiting if the job goes on
                            has none                                      that of its events
                            does not exist yet                            waiting
    over                    has a result                                  that of the result
                            has none, or does not exist                   by the phase and the exit code
    purged, or no answer    has a result                                  that of the result
                            has none                                      by the heartbeat
                            does not exist                                lost; queued without an answer
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from clustertrain.launchers.scheduler.interface import State
from clustertrain.observe.run_state import Ended, RunState, alive, of_result
from clustertrain.run_files.states import CAUSE_OF_CODE, STATES

# The state and the cause of a run without a result, by the phase of its job.
_OF_PHASE: Mapping[str, tuple[str, str]] = {
    "waits": ("queued", "scheduler"),
    "held": ("queued", "held"),
    "starts": ("waiting", "nodes"),
    "suspended": ("waiting", "suspended"),
    "ended": ("lost", "vanished"),
    "cancelled": ("cancelled", "cancelled"),
    "timed out": ("lost", "time_limit"),
}


@dataclass(frozen=True)
class Files:
    """The facts about a run in its storage.

    Attributes:
        job_text: names the job, such as "SLURM job 12".
        attempt: the number of the newest attempt, or None.
        is_of_job: whether a start of that job claimed that attempt.
        start: the mark of the start that claimed it; empty if unknown.
        result: the result of that attempt, or None if it has not ended.
        live: the state of the attempt by its events: waiting, staging or running; lost if that was read and
            no process of it lives.
        cancelled: whether the job is known to be cancelled before it began or continued.
        text: the reason of `live`.
        are_read: whether the storage could be read.
    """

    job_text: str
    attempt: int | None = None
    is_of_job: bool = False
    start: str = ""
    result: Ended | None = None
    live: str = "waiting"
    cancelled: bool = False
    text: str = ""
    are_read: bool = True


def standing_of(
    files: Files, job: State | None, no_answer: str | None, who_runs: Callable[[], str | None]
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
    return _with_hosts(files, job)


def _queued(files: Files, job: State) -> RunState:
    state, cause = _OF_PHASE[job.phase]
    if not files.is_of_job:
        return RunState(state, cause, job.text)
    again = f"{job.text}; again after attempt {files.attempt}"
    if files.result is not None and files.result.cause == "node_fail":
        again += f": {files.result.text.partition(chr(10))[0]}"
    return RunState(state, "requeued" if cause == "scheduler" else cause, again)


def _with_hosts(files: Files, job: State) -> RunState:
    runner = files.job_text + (f" on {job.hosts}" if job.hosts else "")
    # A scheduler may count the start at the requeue, while the previous one is still ending.
    has_attempt = files.is_of_job and (job.phase == "ends" or _is_this_start(files, job))
    if has_attempt and files.result is not None:
        if job.goes_on and STATES[files.result.state].restarts:
            ended = f"attempt {files.attempt} ended as {files.result.state} ({files.result.cause})"
            text = "\n".join(filter(None, (job.why, f"{ended}, and the run continues")))
            return RunState("waiting", "nodes", text, runner=runner)
        return of_result(files.result, over=False)  # the scheduler may start the job again
    if job.phase in ("starts", "suspended"):
        return RunState(*_OF_PHASE[job.phase], job.why, runner=runner)
    if not has_attempt:
        text = job.why or "started; it has begun no attempt yet"
        return RunState("waiting", "nodes", text, runner=runner)
    if files.live == "lost":
        silent = f"attempt {files.attempt} has no heartbeat; it is not known yet how it ended"
        return RunState("waiting", "nodes", job.why or silent, runner=runner)
    return alive(files.live, runner, job.why or files.text)


def _after_its_end(files: Files, job: State) -> RunState:
    result, succeeded = files.result, job.phase == "ended" and job.code == 0
    began = files.is_of_job and _is_this_start(files, job)
    # A start of a run that is done claims no attempt, and its job ends with 0.
    had_nothing_to_do = succeeded and result is not None and result.state == "done"
    is_reported = files.is_of_job and (succeeded or began or not may_go_on(result))
    if result is not None and (had_nothing_to_do or is_reported):
        if result.state == "preempted" and job.phase == "timed out":
            why = f"{files.job_text}: {job.text}; submit it again to continue"
            return RunState("stopped", "time_limit", why, over=True, of_result=True)
        return of_result(result, over=True)
    state, cause = _OF_PHASE[job.phase]
    text = f"{files.job_text}: {job.text}"
    if job.code and not began and job.code in STATES["failed"].exit_codes:
        state, cause = "failed", CAUSE_OF_CODE.get(job.code, "error")
        text += "" if job.why else f"; it ended with exit code {job.code} before an attempt: see its output"
    elif succeeded and files.are_read:
        text += "; it left no result"
    elif succeeded:
        state, cause = "done", "finished"
    return RunState(state, cause, text, over=True)


def _by_the_files(files: Files, no_answer: str | None, who_runs: Callable[[], str | None]) -> RunState:
    if not files.are_read:
        text = f"{files.job_text} is gone, and its storage was not read"
        return RunState("lost", "vanished", text, over=True)
    if files.cancelled and (not files.is_of_job or may_go_on(files.result)):
        return RunState("cancelled", "cancelled", f"{files.job_text} was cancelled", over=True)
    if not files.is_of_job:
        return _never_started(files, no_answer)
    if files.result is not None:
        unknown = no_answer is not None and may_go_on(files.result)
        text = "it is not known whether its job was requeued" if unknown else ""
        return of_result(files.result, over=not unknown, text=text)
    runner = who_runs()
    if runner is not None:
        return alive(files.live, runner, files.text)
    return RunState("lost", "vanished", "it has no heartbeat, and wrote no result", over=no_answer is None)


def _never_started(files: Files, no_answer: str | None) -> RunState:
    if no_answer is not None:
        return RunState("queued", "scheduler", f"{files.job_text} was submitted; no attempt has begun")
    text = f"the scheduler no longer knows {files.job_text}, which began no attempt"
    return RunState("lost", "vanished", text, over=True)


def _is_this_start(files: Files, job: State) -> bool:
    """Return whether the newest attempt is of the current start of the job.

    After a requeue, the files of the previous start do not show the state of the new one.
    """
    return not (files.start and job.start) or files.start == job.start


def may_go_on(result: Ended | None) -> bool:
    """Return whether a scheduler may start the job of a run again that ended so."""
    return result is None or STATES[result.state].restarts
