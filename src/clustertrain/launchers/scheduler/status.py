"""The status of runs in a scheduler, from their files and the states of their jobs in the queue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from clustertrain.errors import ClusterError, ClusterTrainError
from clustertrain.job.launcher_plugins import distribution_of, raised
from clustertrain.launchers.scheduler.interface import Scheduler, Sent, State, start_text
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
from clustertrain.run_files.claims import who_runs
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.records.scheduler import SchedulerJob, SchedulerStart


@dataclass(frozen=True)
class Registered:
    """A scheduler, and the name under which its plug-in registered it.

    `reads_storage`: whether this machine reads the storage of its runs, and sends the code through it.
    """

    name: str
    scheduler: Scheduler
    reads_storage: bool = True


@dataclass(frozen=True)
class QueueAnswer:
    """A scheduler's answer about some jobs; `no_answer`: the reason if it did not answer."""

    states: Mapping[str, State]
    no_answer: str | None = None


def ask(queue: Registered, jobs: Sequence[Sent]) -> QueueAnswer:
    """Ask for the states of jobs of one place; `no_answer` is also a mistake of a plug-in."""
    if not jobs:
        return QueueAnswer({})
    try:
        states = queue.scheduler.query(jobs)
        wrong = [each for each in states.values() if not isinstance(each, State)]
        if wrong:
            raise TypeError(f"query returned {wrong[0]!r}, not a State")
    except ClusterError as error:
        return QueueAnswer({}, str(error).splitlines()[0])
    except Exception as error:  # noqa: BLE001  of a plug-in: its runs stay listed, and can be stopped
        return QueueAnswer({}, f"query of {blamed(queue.name, error)}")
    return QueueAnswer(states)


@contextmanager
def blaming(queue: Registered, method: str) -> Iterator[None]:
    """Make an error of a method of a plug-in that is none of clustertrain's a ClusterError that names it."""
    try:
        yield
    except ClusterTrainError:
        raise
    except Exception as error:
        raise ClusterError(f"{method} of {blamed(queue.name, error)}") from error


def blamed(name: str, error: Exception) -> str:
    """Name the plug-in, its distribution, the error, and the line of code that raised it."""
    return f"the launcher {name} of {distribution_of(name)} failed: {raised(error)}"


@dataclass(frozen=True)
class QueuedJob:
    """A job of a run.

    Attributes:
        sent: its ID and place, and the path of the output file that the scheduler writes if that is known.
        queue: the state in the scheduler, or None if that has purged the job, or does not answer.
        no_answer: the reason if the scheduler does not answer, or None if it does.
        cancelled_by_stop: whether `stop` cancelled it while it waited for its start or its restart.
    """

    sent: Sent
    queue: State | None = None
    no_answer: str | None = None
    cancelled_by_stop: bool = False

    @property
    def job_id(self) -> str:
        return self.sent.job_id

    @property
    def is_cancelled(self) -> bool:
        return self.cancelled_by_stop or (self.queue is not None and self.queue.phase == "cancelled")


@dataclass(frozen=True)
class QueuedStatus(Status):
    """The status of a run with a job in a scheduler, present or past.

    Attributes:
        label: how messages name the scheduler.
        job: the job that determines the state of the run.
        waiting_jobs: further jobs of the run, which wait in the queue.
    """

    label: str
    job: QueuedJob
    waiting_jobs: tuple[QueuedJob, ...] = ()

    @property
    def where(self) -> str:
        return f"{self.label} job {self.job.job_id}"

    @property
    def no_answer(self) -> str | None:
        return self.job.no_answer

    @property
    def job_rows(self) -> list[Row]:
        job, queue = self.job, self.job.queue
        rows = [("job", f"{self.label} {job.job_id}" + (f": {queue.text}" if queue is not None else ""))]
        if queue is not None:
            rows += rows_of(queue)
        for each in self.waiting_jobs:
            if each.queue is not None:
                rows.append(("next job", f"{self.label} {each.job_id}: {each.queue.text}"))
        return [*rows, ("output", job.sent.output)] if job.sent.output else rows


def rows_of(state: State) -> list[Row]:
    """Return the rows about a job in a queue: its start, its hosts, and those of the scheduler."""
    starts = start_text(state.starts_at) if state.is_waiting else ""
    known = {"starts": starts, "nodes": state.hosts, **state.rows}
    return [(name, text) for name, text in known.items() if text]


def status_of(queue: Registered, run: RunDir) -> Status:
    """Return the status of one run.

    Raises:
        NotStarted: it was neither started nor submitted.
    """
    return statuses(queue, [read_files(run)])[0]


def statuses(queue: Registered, runs: Sequence[RunFiles]) -> list[Status]:
    """Return the statuses of runs, with one query to the scheduler for each place of their jobs."""
    read = [_Files(files, queue) for files in runs]
    places: dict[tuple[tuple[str, str], ...], dict[str, Sent]] = {}
    for job in (job for each in read for job in each.asked):
        places.setdefault(_key(job), {})[job.job_id] = job
    answers = {place: ask(queue, [jobs[job_id] for job_id in sorted(jobs)]) for place, jobs in places.items()}
    return [_status(each, answers) for each in read]


Place = tuple[tuple[str, str], ...]


def _key(job: Sent) -> Place:
    return tuple(sorted(job.place.items()))


@dataclass(frozen=True)
class _Files:
    """The files of a run, and the jobs of a scheduler that they name."""

    files: RunFiles
    queue: Registered

    @property
    def own_start(self) -> SchedulerStart | None:
        """The start of the job that claimed the newest attempt, or None if no job of this scheduler did."""
        claim = self.files.claim
        allocation = claim.allocation if claim is not None else None
        return allocation if allocation is not None and allocation.scheduler == self.queue.name else None

    @property
    def jobs(self) -> list[SchedulerJob | SchedulerStart]:
        """The jobs that may run it now.

        The jobs submitted since the newest attempt began come first, newest first, and then the job that
        claimed this attempt.
        """
        began_at = self.files.claim.time if self.files.claim is not None else float("-inf")
        own_jobs = (each for each in self.files.submissions if each.scheduler == self.queue.name)
        later = [each for each in reversed([*own_jobs]) if each.time > began_at]
        own = self.own_start
        if own is None:
            return [*later]
        return [*(each for each in later if each.job_id != own.job_id), own]

    @property
    def asked(self) -> list[Sent]:
        """The jobs to query; none for a run that is done and has no later job."""
        jobs, result = self.jobs, self.files.result
        is_done = result is not None and result.state == "done" and jobs in ([], [self.own_start])
        return [] if is_done else [self.sent(job) for job in jobs]

    def sent(self, job: SchedulerJob | SchedulerStart) -> Sent:
        """Return a job that a submission or a claim names, as the scheduler's plug-in knows it."""
        record = next((each for each in self.files.submissions if each.job_id == job.job_id), None)
        place = job.place or (record.place if record is not None else {})
        return Sent(job.job_id, record.output if record is not None else "", place=place)


def _status(read: _Files, answers: Mapping[Place, QueueAnswer]) -> Status:
    files = read.files
    job, waiting_jobs = _jobs_of(read, answers)
    if job is None:
        return status_by_files(files)
    standing = _standing_in_job(read, job)
    if standing.state == "lost":
        # The query and the check of the heartbeat take time; the run may have ended meanwhile.
        late = with_late_result(files)
        if late is not files:
            return _status(replace(read, files=late), answers)
    return QueuedStatus(files, standing, read.queue.scheduler.label, job, waiting_jobs)


def _jobs_of(
    read: _Files, answers: Mapping[Place, QueueAnswer]
) -> tuple[QueuedJob | None, tuple[QueuedJob, ...]]:
    """Return the job that determines the state of the run, and the other jobs that wait in the queue.

    The first is the job that has hosts, else one that waits, else the newest. A job that was cancelled before
    it began an attempt does not count.
    """
    jobs = []
    for sent in map(read.sent, read.jobs):
        answer = answers.get(_key(sent), QueueAnswer({}))
        is_cancelled = read.files.run.cancellation(read.queue.name, sent.job_id).exists()
        jobs.append(QueuedJob(sent, answer.states.get(sent.job_id), answer.no_answer, is_cancelled))
    if read.files.attempt is not None:
        own_id = read.own_start.job_id if read.own_start is not None else None
        jobs = [job for job in jobs if job.job_id == own_id or not job.is_cancelled]
    waiting = [job for job in jobs if job.queue is not None and job.queue.is_waiting]
    running = [job for job in jobs if job.queue is not None and not job.queue.is_over and job not in waiting]
    current = next(iter([*running, *waiting, *jobs]), None)
    return current, tuple(job for job in waiting if job is not current)


def _standing_in_job(read: _Files, job: QueuedJob) -> RunState:
    attempt, own = read.files.attempt, read.own_start
    is_of_job = own is not None and own.job_id == job.job_id
    files = Files(
        f"{read.queue.scheduler.label} job {job.job_id}",
        attempt=attempt.n if attempt else None,
        is_of_job=is_of_job,
        start=own.start if own is not None else "",
        result=read.files.result,
        live=live_state(attempt) if is_of_job and attempt and read.files.result is None else "waiting",
        cancelled=job.cancelled_by_stop,
    )
    who = partial(who_runs, attempt) if attempt else lambda: None
    return standing_of(files, job.queue, job.no_answer, who)
