"""The state of a run, as `ls` and `status` show it: what its files say, joined with its scheduler's queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from clustertrain.errors import JobError
from clustertrain.job.file import load_job
from clustertrain.launchers.slurm.queue import Answer, QueueState, ask
from clustertrain.launchers.slurm.state import Files, join
from clustertrain.observe.standing import Standing, alive, of_result
from clustertrain.run.claims import who_runs
from clustertrain.run.folder import Attempt, RunDir, run_names
from clustertrain.run.history import curve, events_of_attempt
from clustertrain.run.result import Result, read_result
from clustertrain.run.states import STATES
from clustertrain.storage import Location, open_store

_ANOTHER_JOB_S = 3600.0  # clocks of two machines differ by less


class NotStarted(JobError):
    """There is no such run: it was neither started nor submitted."""


@dataclass(frozen=True)
class SlurmJob:
    """A job that a run is in.

    Attributes:
        output: the file that SLURM writes, empty where it is not known.
        queue: None where SLURM has forgotten it, or is silent.
        silence: why SLURM said nothing.
        taken_out: `stop` cancelled it before it started, or before it started again.
    """

    job_id: str
    output: str = ""
    queue: QueueState | None = None
    silence: str | None = None
    taken_out: bool = False

    @property
    def is_cancelled(self) -> bool:
        return self.taken_out or (self.queue is not None and self.queue.native == "CANCELLED")


@dataclass(frozen=True)
class Status:
    """One run, at one moment.

    Attributes:
        attempt: the newest one; None where the run was submitted and has not started.
        standing: state and cause, a row of states.STATES.
        ended: how the newest attempt ended, None while it has not; the run may be queued again since.
        last: the newest record of its curve, None where there is none.
        job: the scheduler's job that it is in, None for a run on one machine.
        behind: more jobs of it, which wait in the queue.
    """

    run: RunDir
    attempt: Attempt | None
    standing: Standing
    ended: Result | None
    last: dict[str, Any] | None
    job: SlurmJob | None = None
    behind: tuple[SlurmJob, ...] = ()

    @property
    def state(self) -> str:
        return self.standing.state

    @property
    def runner(self) -> str | None:
        """Who runs it, in words; None when nobody does."""
        return self.standing.runner

    @property
    def result(self) -> Result | None:
        """The result of the newest attempt where that is where the run stands."""
        return self.ended if self.standing.of_result else None

    @property
    def step(self) -> int:
        if self.result is not None:
            return self.result.step
        return int(self.last["step"]) if self.last else 0

    @property
    def exit_code(self) -> int | None:
        """That of the run as it stands; None where it has not ended."""
        if self.result is not None:
            return self.result.exit_code
        queue = self.job.queue if self.job is not None else None
        if self.state == "failed" and queue is not None and queue.exit_code is not None:
            return queue.exit_code
        codes = STATES[self.state].exit_codes
        return codes[0] if codes else None

    @property
    def note(self) -> str | None:
        """Why the scheduler was not heard, in a line; None where it was, or where it could tell no more."""
        if self.job is None or self.job.silence is None or self.standing.over:
            return None
        lives = "; by the heartbeat it lives" if self.runner else "; this is what the storage says"
        return f"{self.job.silence}{lives}"


def find_run(target: str) -> RunDir:
    """The newest generation of the run that `target` names: a job file, or the folder of a run.

    Raises:
        JobError: there is no such job file, or it is wrong.
        NotStarted: the run was neither started nor submitted.
    """
    path = Path(target)
    if path.is_file():
        job = load_job(path)
        run = RunDir.newest(job.storage.location, job.name)
    elif Location(target).is_s3:
        storage, _, name = target.rstrip("/").rpartition("/")
        run = RunDir.newest(storage, name)
    else:
        run = RunDir.newest(str(path.absolute().parent), path.absolute().name)
    if not _is_known(run):
        known = run_names(run.store) if path.is_file() else run_names(open_store(target))
        remedy = (
            f"Started so far: {', '.join(known[:8])}."
            if known
            else "Start it with `clustertrain run JOBFILE`."
        )
        raise NotStarted(f"{target}: there is no run at {run.store.uri(run.name)}.\n{remedy}")
    return run


def _is_known(run: RunDir) -> bool:
    return run.newest_attempt() is not None or bool(run.submissions())


def status_of(run: RunDir) -> Status:
    """Where a run stands.

    Raises:
        JobError: it was neither started nor submitted.
    """
    return _statuses([run])[0]


def all_runs(storage: Location | str) -> list[Status]:
    """Every run of a storage that was started or submitted, by name; the scheduler is asked once for all."""
    store = open_store(storage)
    runs = (RunDir.newest(storage, name) for name in run_names(store))
    return _statuses([run for run in runs if _is_known(run)])


@dataclass(frozen=True)
class _Read:
    """What the storage holds of a run."""

    run: RunDir
    attempt: Attempt | None
    claim: dict[str, Any]
    result: Result | None
    submissions: list[dict[str, Any]]

    @property
    def own(self) -> dict[str, Any]:
        """The scheduler's job that made the newest attempt, as its claim says; empty for one without."""
        allocation = self.claim.get("allocation") or {}
        return allocation if allocation.get("scheduler") == "slurm" else {}

    @property
    def jobs(self) -> list[dict[str, Any]]:
        """The scheduler's jobs that the run may be in: those that were submitted since the newest attempt
        began, newest first, then the one that made it."""
        began_at = self.claim.get("time", float("-inf"))
        later = [each for each in reversed(self.submissions) if each["time"] > began_at]
        own = [self.own] if self.own else []
        return [each for each in later if each["job_id"] != self.own.get("job_id")] + own

    @property
    def job_ids(self) -> list[str]:
        """Those to ask for: a run that is done stays done."""
        jobs = self.jobs
        is_done = self.result is not None and self.result.state == "done" and jobs in ([], [self.own])
        return [] if is_done else [str(job["job_id"]) for job in jobs]


def _statuses(runs: Sequence[RunDir]) -> list[Status]:
    read = [_read(run) for run in runs]
    answer = ask(sorted({job_id for each in read for job_id in each.job_ids}))
    return [_status(each, answer) for each in read]


def _read(run: RunDir) -> _Read:
    attempt, submissions = run.newest_attempt(), run.submissions()
    if attempt is None:
        if not submissions:
            raise JobError(f"{run.uri} was never started.\nStart it with `clustertrain run JOBFILE`.")
        return _Read(run, None, {}, None, submissions)
    return _Read(run, attempt, attempt.read("claim.json") or {}, read_result(attempt), submissions)


def _status(read: _Read, answer: Answer) -> Status:
    job, behind = _jobs_of(read, answer)
    standing = _alone(read) if job is None else _in_a_job(read, job)
    if standing.state == "lost" and read.attempt is not None and read.result is None:
        # The scheduler's answer and a look at the heartbeat take a while: it may have ended meanwhile.
        late = read_result(read.attempt)
        if late is not None:
            return _status(replace(read, result=late), answer)
    records = curve(read.run)
    last = records[-1] if records else None
    return Status(read.run, read.attempt, standing, read.result, last, job, behind)


def _alone(read: _Read) -> Standing:
    """A run that no scheduler has."""
    if read.attempt is None:
        raise JobError(f"{read.run.uri} was never started.\nStart it with `clustertrain run JOBFILE`.")
    if read.result is not None:
        return of_result(read.result, over=True)
    runner = who_runs(read.attempt)
    if runner is None:
        return Standing("lost", "vanished", over=True)
    return alive(live_state(read.attempt), runner)


def _jobs_of(read: _Read, answer: Answer) -> tuple[SlurmJob | None, tuple[SlurmJob, ...]]:
    """The job that tells where the run stands: the one that has nodes, else one that waits, else the newest;
    and those that wait behind it. One that was cancelled before it began an attempt changed nothing."""
    jobs = [_slurm_job(named, read, answer) for named in read.jobs]
    if read.attempt is not None:
        own_id = str(read.own.get("job_id"))
        jobs = [job for job in jobs if job.job_id == own_id or not job.is_cancelled]
    running = [job for job in jobs if job.queue is not None and job.queue.has_nodes]
    waiting = [job for job in jobs if job.queue is not None and job.queue.is_waiting]
    tells = next(iter([*running, *waiting, *jobs]), None)
    return tells, tuple(job for job in waiting if job is not tells)


def _slurm_job(named: dict[str, Any], read: _Read, answer: Answer) -> SlurmJob:
    """A job as its submission or its allocation names it, and what SLURM says of it."""
    job_id = str(named["job_id"])
    record = next((each for each in read.submissions if str(each["job_id"]) == job_id), {})
    cluster = named.get("cluster") or record.get("cluster")
    queue = answer.jobs.get(job_id)
    here = queue.cluster if queue is not None else answer.cluster
    if queue is not None and _is_another(queue, cluster, record.get("time")):
        queue = None
    silence = answer.silence
    if queue is None and cluster and here and here != cluster:
        silence = f"SLURM's cluster here is {here}, the run's is {cluster}"
    taken_out = read.run.read_json(taken_out_key(read.run, job_id)) is not None
    return SlurmJob(job_id, record.get("output", ""), queue, silence, taken_out)


def _is_another(queue: QueueState, cluster: str | None, recorded_at: float | None) -> bool:
    """Whether the job that has this id here is another: of another cluster, or of one that began to count
    anew. A requeue counts as a submission."""
    if cluster and queue.cluster and cluster != queue.cluster:
        return True
    if queue.restarts != 0 or recorded_at is None or queue.submitted_at is None:
        return False
    return queue.submitted_at - recorded_at > _ANOTHER_JOB_S


def _in_a_job(read: _Read, job: SlurmJob) -> Standing:
    attempt, own = read.attempt, read.own
    its = bool(own) and str(own["job_id"]) == job.job_id
    files = Files(
        job.job_id,
        attempt=attempt.n if attempt else None,
        is_its=its,
        restart=int(own.get("restart") or 0),
        result=read.result,
        live=live_state(attempt) if its and attempt and read.result is None else "waiting",
        cancelled=job.taken_out,
    )
    return join(files, job.queue, job.silence, partial(who_runs, attempt) if attempt else lambda: None)


def is_in_a_job(run: RunDir) -> bool:
    """Whether a scheduler has, or had, the run."""
    attempt = run.newest_attempt()
    claim = attempt.read("claim.json") if attempt is not None else None
    return bool(run.submissions()) or bool((claim or {}).get("allocation"))


def taken_out_key(run: RunDir, job_id: str) -> str:
    """Where `stop` writes that it cancelled a job: SLURM forgets it soon."""
    return f"{run.key}/submissions/slurm-{job_id}.ended.json"


def live_state(attempt: Attempt) -> str:
    """How far an attempt that runs has come, by its events: waiting, staging or running."""
    state = "waiting"
    for event in events_of_attempt(attempt):
        if event["kind"] == "stage":
            state = "waiting" if event["phase"] == "ready" else "staging"
        elif event["kind"] in ("group_started", "checkpoint"):
            state = "running"
        elif event["kind"] == "restarting":
            state = "waiting"
    return state
