"""The status of runs in a scheduler, from their files and the states of their jobs in the queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from clustertrain.launchers.scheduler.interface import Answer, Handle, JobState, Scheduler
from clustertrain.launchers.scheduler.run_state import Files, standing_of
from clustertrain.observe.run_state import RunState
from clustertrain.observe.status import (
    Row,
    RunFiles,
    Status,
    live_state,
    read_files,
    status_by_files,
    with_late_result,
)
from clustertrain.run.claims import who_runs
from clustertrain.run.folder import RunDir
from clustertrain.run.records import SchedulerJob, SchedulerStart

_ANOTHER_JOB_S = 3600.0  # the clocks of two machines differ by less


@dataclass(frozen=True)
class QueuedJob:
    """A job of a run.

    Attributes:
        handle: its ID, and the path of the output file that the scheduler writes if that is known.
        queue: the state in the scheduler, or None if that has purged the job, or does not answer.
        no_answer: the reason if the scheduler does not answer, or None if it does.
        cancelled_by_stop: whether `stop` cancelled it while it waited for its start or its restart.
    """

    handle: Handle
    queue: JobState | None = None
    no_answer: str | None = None
    cancelled_by_stop: bool = False

    @property
    def job_id(self) -> str:
        return self.handle.job_id

    @property
    def is_cancelled(self) -> bool:
        return self.cancelled_by_stop or (self.queue is not None and self.queue.is_cancelled)


@dataclass(frozen=True)
class QueuedStatus(Status):
    """The status of a run with a job in a scheduler, present or past.

    Attributes:
        scheduler: how messages name the scheduler.
        job: the job that determines the state of the run.
        waiting_jobs: further jobs of the run, which wait in the queue.
    """

    scheduler: str
    job: QueuedJob
    waiting_jobs: tuple[QueuedJob, ...] = ()

    @property
    def where(self) -> str:
        return f"{self.scheduler} job {self.job.job_id}"

    @property
    def no_answer(self) -> str | None:
        return self.job.no_answer

    @property
    def job_rows(self) -> list[Row]:
        job, queue = self.job, self.job.queue
        rows = [("job", f"{self.scheduler} {job.job_id}" + (f": {queue.text}" if queue is not None else ""))]
        if queue is not None:
            requeued = f"{queue.restarts} times" if (queue.restarts or 0) > 1 else "once"
            known = {
                "starts": queue.starts,
                "nodes": queue.nodes,
                "time left": queue.time_left.lower() if queue.has_nodes else "",
                "requeued": requeued if queue.restarts else "",
            }
            rows += [(name, text) for name, text in known.items() if text]
        for each in self.waiting_jobs:
            if each.queue is not None:
                rows.append(("next job", f"{self.scheduler} {each.job_id}: {each.queue.text}"))
        return [*rows, ("output", job.handle.output)] if job.handle.output else rows


def located(scheduler: Scheduler, status: Status) -> Status:
    """Return the status, with the position of a job that waits."""
    if not isinstance(status, QueuedStatus) or status.job.queue is None or not status.job.queue.is_waiting:
        return status
    return replace(status, job=replace(status.job, queue=scheduler.located(status.job.queue)))


def status_of(scheduler: Scheduler, run: RunDir) -> Status:
    """Return the status of one run.

    Raises:
        NotStarted: it was neither started nor submitted.
    """
    return statuses(scheduler, [read_files(run)])[0]


def statuses(scheduler: Scheduler, runs: Sequence[RunFiles]) -> list[Status]:
    """Return the statuses of runs, with one query to the scheduler for all of them."""
    read = [_Files(files, scheduler) for files in runs]
    job_ids = sorted({job_id for each in read for job_id in each.job_ids})
    answer = scheduler.states([*map(Handle, job_ids)]) if job_ids else Answer({})
    return [_status(each, answer) for each in read]


@dataclass(frozen=True)
class _Files:
    """The files of a run, and the jobs of a scheduler that they name."""

    files: RunFiles
    scheduler: Scheduler

    @property
    def own_start(self) -> SchedulerStart | None:
        """The start of the job that claimed the newest attempt, or None if no job of this scheduler did."""
        claim = self.files.claim
        allocation = claim.allocation if claim is not None else None
        return allocation if allocation is not None and allocation.scheduler == self.scheduler.name else None

    @property
    def jobs(self) -> list[SchedulerJob | SchedulerStart]:
        """The jobs that may run it now.

        The jobs submitted since the newest attempt began come first, newest first, and then the job that
        claimed this attempt.
        """
        began_at = self.files.claim.time if self.files.claim is not None else float("-inf")
        own_jobs = (each for each in self.files.submissions if each.scheduler == self.scheduler.name)
        later = [each for each in reversed([*own_jobs]) if each.time > began_at]
        own = self.own_start
        if own is None:
            return [*later]
        return [*(each for each in later if each.job_id != own.job_id), own]

    @property
    def job_ids(self) -> list[str]:
        """The IDs of the jobs to query, or empty for a run that is done and has no later job."""
        jobs, result = self.jobs, self.files.result
        is_done = result is not None and result.state == "done" and jobs in ([], [self.own_start])
        return [] if is_done else [job.job_id for job in jobs]


def _status(read: _Files, answer: Answer) -> Status:
    files = read.files
    job, waiting_jobs = _jobs_of(read, answer)
    if job is None:
        return status_by_files(files)
    standing = _standing_in_job(read, job)
    if standing.state == "lost":
        # The query and the check of the heartbeat take time; the run may have ended meanwhile.
        late = with_late_result(files)
        if late is not files:
            return _status(replace(read, files=late), answer)
    return QueuedStatus(files, standing, read.scheduler.label, job, waiting_jobs)


def _jobs_of(read: _Files, answer: Answer) -> tuple[QueuedJob | None, tuple[QueuedJob, ...]]:
    """Return the job that determines the state of the run, and the other jobs that wait in the queue.

    The first is the job that has nodes, else one that waits, else the newest. A job that was cancelled before
    it began an attempt does not count.
    """
    jobs = [_queued_job(named, read, answer) for named in read.jobs]
    if read.files.attempt is not None:
        own_id = read.own_start.job_id if read.own_start is not None else None
        jobs = [job for job in jobs if job.job_id == own_id or not job.is_cancelled]
    running = [job for job in jobs if job.queue is not None and job.queue.has_nodes]
    waiting = [job for job in jobs if job.queue is not None and job.queue.is_waiting]
    current = next(iter([*running, *waiting, *jobs]), None)
    return current, tuple(job for job in waiting if job is not current)


def _queued_job(named: SchedulerJob | SchedulerStart, read: _Files, answer: Answer) -> QueuedJob:
    """Return a job named by a submission or an allocation, with its state in the scheduler."""
    job_id = named.job_id
    record = next((each for each in read.files.submissions if each.job_id == job_id), None)
    cluster = named.cluster or (record.cluster if record is not None else None)
    queue = answer.jobs.get(job_id)
    here = queue.cluster if queue is not None else answer.cluster
    if queue is not None and _is_another(queue, cluster, record.time if record is not None else None):
        queue = None
    no_answer = answer.no_answer
    if queue is None and cluster and here and here != cluster:
        no_answer = f"{read.scheduler.label}'s cluster here is {here}, the run's is {cluster}"
    cancelled_by_stop = read.files.run.cancellation(read.scheduler.name, job_id).exists()
    handle = Handle(job_id, cluster, record.output if record is not None else "")
    return QueuedJob(handle, queue, no_answer, cancelled_by_stop)


def _is_another(queue: JobState, cluster: str | None, recorded_at: float | None) -> bool:
    """Return whether the job with this ID in the queue is not the run's job.

    Then it is of another cluster, or the cluster has reset its job IDs. A requeue sets a new submission time,
    so requeued jobs are not compared.
    """
    if cluster and queue.cluster and cluster != queue.cluster:
        return True
    if queue.restarts != 0 or recorded_at is None or queue.submitted_at is None:
        return False
    return queue.submitted_at - recorded_at > _ANOTHER_JOB_S


def _standing_in_job(read: _Files, job: QueuedJob) -> RunState:
    attempt, own = read.files.attempt, read.own_start
    is_of_job = own is not None and own.job_id == job.job_id
    files = Files(
        read.scheduler.label,
        job.job_id,
        attempt=attempt.n if attempt else None,
        is_of_job=is_of_job,
        restart=own.restart if own is not None else 0,
        result=read.files.result,
        live=live_state(attempt) if is_of_job and attempt and read.files.result is None else "waiting",
        cancelled=job.cancelled_by_stop,
    )
    who = partial(who_runs, attempt) if attempt else lambda: None
    return standing_of(files, job.queue, job.no_answer, who)
