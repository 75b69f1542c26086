"""The job files that a run keeps: as it was submitted, as it runs, as each attempt ran it."""

from __future__ import annotations

from clustertrain.errors import JobError
from clustertrain.job.file import parse_job, record_of
from clustertrain.job.model import Job
from clustertrain.run_files.folder.run_dir import Attempt, RunDir
from clustertrain.run_files.job_diff import changed_nothing, standing_attempt
from clustertrain.run_files.streams.step_counter import reached_step


def record_job(attempt: Attempt, job: Job) -> None:
    """Write the job as this attempt runs it: for the attempt, and as the job of the run.

    Raises:
        StorageError: the storage refuses.
    """
    text = record_of(job).encode()
    attempt.run.store.write_atomic(attempt.run.job_key, text)
    attempt.run.store.write_atomic(attempt.job_key, text)


def restore_job(run: RunDir) -> None:
    """Write the job of the run again, after an attempt that has changed nothing. Raises as `record_job`."""
    if (attempt := standing_attempt(run)) is not None:
        text = run.store.read_or_none(attempt.job_key)
        if text is not None:
            run.store.write_atomic(run.job_key, text)


def job_at(run: RunDir, key: str) -> Job | None:
    """Return the job at a key of the run, or None.

    Raises:
        JobError: this version does not accept the job.
        StorageError: the storage refuses.
    """
    data = run.store.read_or_none(key)
    if data is None:
        return None
    try:
        return parse_job(data.decode(), run.store.uri(key))
    except UnicodeDecodeError as error:
        raise JobError(f"{run.store.uri(key)} is damaged: {error}.\nRestore or remove it.") from error


def job_of(attempt: Attempt) -> Job | None:
    """Return the job of an attempt, or None if it was killed before it wrote the job.

    Raises as `job_at`.
    """
    return job_at(attempt.run, attempt.job_key)


def is_of_script(attempt: Attempt) -> bool:
    """Return whether the attempt runs a script, of which clustertrain knows no steps.

    Raises as `job_at`.
    """
    job = job_of(attempt)
    return job is not None and job.is_script


def last_job(run: RunDir) -> Job | None:
    """Return the job of the last attempt that wrote one and was not refused.

    Without such an attempt, return the job that the run keeps, or None. Raises as `job_at`.
    """
    jobs = (job_of(attempt) for attempt in reversed(run.attempts()) if not changed_nothing(attempt))
    return next((job for job in jobs if job is not None), None) or job_at(run, run.job_key)


def newest_job(run: RunDir) -> Job | None:
    """Return the job of the run; without an attempt, the job of the newest submission.

    Raises as `job_at`.
    """
    if (job := last_job(run)) is not None:
        return job
    submissions = run.submissions()
    return job_at(run, run.snapshot_job_key(submissions[-1].digest)) if submissions else None


def trained_jobs(run: RunDir) -> list[Job]:
    """Return the jobs with which the steps of a run were trained, the oldest first.

    There are several if a changed job has continued the run. Before the first step, and of a script, it is
    the newest job. Raises as `job_at`.
    """
    start, trained = 0, dict[int, Job]()  # each by the step from which it has trained
    for attempt in run.attempts():
        if changed_nothing(attempt):
            continue
        if (changes := attempt.changes.read()) is not None:
            start = changes.step or 0
            trained = {step: job for step, job in trained.items() if step < start}
        job = job_of(attempt)
        if job is not None and (start in trained or _last_step(attempt) > start):
            trained[start] = job
    return [*trained.values()] or [*filter(None, [newest_job(run)])]


def _last_step(attempt: Attempt) -> int:
    if (result := attempt.result.read()) is not None:
        return result.step or 0
    return max(map(reached_step, attempt.restarts()), default=0)
