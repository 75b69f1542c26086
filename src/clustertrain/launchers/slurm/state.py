"""Where a run stands: what its files say, joined with what its scheduler says. No file, no clock in here.

`result.json` of the newest attempt is the truth about an end. The scheduler alone knows that a job waits,
waits again, or died without a word; it is never trusted to say how training went.

    the scheduler says     newest attempt, if this start of the job made it   the run is
    waits                  (any)                                              queued
    has nodes              has a result                                       as the result says
                           has none                                           as its events say
                           there is none yet                                  waiting
    over                   has a result                                       as the result says
                           has none, or there is none                         lost or cancelled, by its word
    forgotten, or silent   has a result                                       as the result says
                           has none                                           as the heartbeat says
                           there is none                                      lost; queued where it is silent
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from clustertrain.launchers.slurm.queue import QueueState
from clustertrain.observe.standing import Standing, alive, of_result
from clustertrain.run.records import Result
from clustertrain.run.states import CAUSE_OF_CODE, STATES


@dataclass(frozen=True)
class Files:
    """What the storage says.

    Attributes:
        job_id: the scheduler's job that the run is in.
        attempt: the number of the newest attempt, None where there is none.
        is_its: whether a start of that job made that attempt.
        restart: which start of it: 0, then the number of times that it was requeued.
        result: how that attempt ended, None while it has not.
        live: what the attempt's events say of it: waiting, staging or running.
        cancelled: somebody cancelled the job while it waited, and wrote that down.
    """

    job_id: str
    attempt: int | None = None
    is_its: bool = False
    restart: int = 0
    result: Result | None = None
    live: str = "waiting"
    cancelled: bool = False


def standing_of(
    files: Files, job: QueueState | None, no_answer: str | None, who_runs: Callable[[], str | None]
) -> Standing:
    """Where a run stands that a scheduler has, or had.

    Args:
        job: None where the scheduler has forgotten it, or is silent.
        silence: why it said nothing; None where it answered.
        who_runs: looks at the heartbeat, which takes a while; called only where nothing else tells.
    """
    if job is None:
        return _by_the_files(files, no_answer, who_runs)
    if job.is_waiting:
        return _queued(files, job)
    if job.is_over:
        return _after_its_end(files, job)
    return _with_nodes(files, job)


def _queued(files: Files, job: QueueState) -> Standing:
    again = f"; requeued after attempt {files.attempt}" if files.is_its else ""
    cause = "requeued" if files.is_its and job.meaning.cause == "scheduler" else job.meaning.cause
    return Standing("queued", cause, f"{job.text}{again}")


def _with_nodes(files: Files, job: QueueState) -> Standing:
    runner = f"SLURM job {job.job_id}" + (f" on {job.nodes}" if job.nodes else "")
    ending = job.native == "COMPLETING"
    text = f"the job {job.meaning.text}" if ending or job.meaning.state == "waiting" else ""
    # A job that is being requeued counts the restart while the start before it is still ending.
    has_attempt = files.is_its and (ending or _is_this_start(files, job))
    if has_attempt and files.result is not None:
        return of_result(files.result, over=_is_settled(files))
    if job.meaning.state == "waiting":
        return Standing("waiting", job.meaning.cause, text, runner=runner)
    if not has_attempt:
        return Standing("waiting", "nodes", text or "started, its nodes are coming up", runner=runner)
    return alive(files.live, runner, text)


def _after_its_end(files: Files, job: QueueState) -> Standing:
    result = files.result if files.is_its else None
    is_reported = _is_settled(files) or _is_this_start(files, job)
    if result is not None and (is_reported or job.native == "COMPLETED"):  # 0: it found nothing left to do
        return of_result(result, over=True)
    began = files.is_its and _is_this_start(files, job)
    if job.native == "FAILED" and not began and job.exit_code in STATES["failed"].exit_codes:
        cause = CAUSE_OF_CODE.get(job.exit_code, "error")
        text = f"SLURM job {job.job_id} ended with exit code {job.exit_code} before it began: see its output"
        return Standing("failed", cause, text, over=True)
    meaning = job.meaning
    return Standing(meaning.state, meaning.cause, f"SLURM job {job.job_id} {meaning.text}", over=True)


def _by_the_files(files: Files, no_answer: str | None, who_runs: Callable[[], str | None]) -> Standing:
    if files.cancelled and not (files.is_its and _is_settled(files)):
        return Standing("cancelled", "cancelled", f"SLURM job {files.job_id} was cancelled", over=True)
    if not files.is_its:
        return _never_started(files, no_answer)
    if files.result is not None:
        unknown = no_answer is not None and not _is_settled(files)
        text = "whether its job is back in the queue is not known" if unknown else ""
        return of_result(files.result, over=not unknown, text=text)
    runner = who_runs()
    if runner is not None:
        return alive(files.live, runner)
    return Standing("lost", "vanished", "it has no heartbeat, and left no result", over=no_answer is None)


def _never_started(files: Files, no_answer: str | None) -> Standing:
    if no_answer is not None:
        return Standing("queued", "scheduler", f"SLURM job {files.job_id} was submitted; no trace of it yet")
    text = f"SLURM has forgotten job {files.job_id}, which began no attempt"
    return Standing("lost", "vanished", text, over=True)


def _is_this_start(files: Files, job: QueueState) -> bool:
    """A requeued job is another start: what the one before it left says nothing of this one."""
    return job.restarts is None or files.restart >= job.restarts


def _is_settled(files: Files) -> bool:
    """Whether the newest attempt ended so that no scheduler starts it again."""
    return files.result is not None and not STATES[files.result.state].restarts
