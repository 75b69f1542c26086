"""The job files that a run keeps: as it was submitted, as it runs, as each attempt ran it."""

from __future__ import annotations

from clustertrain.errors import JobError
from clustertrain.job.file import parse_job, record_of
from clustertrain.job.model import Job
from clustertrain.run.folder import Attempt, RunDir
from clustertrain.run.job_diff import was_refused


def record_job(attempt: Attempt, job: Job) -> None:
    """Write the job as this attempt runs it: for the attempt, and as the job of the run.

    Raises:
        StorageError: the storage refuses.
    """
    text = record_of(job).encode()
    attempt.run.store.write_atomic(attempt.run.job_key, text)
    attempt.run.store.write_atomic(attempt.job_key, text)


def job_at(run: RunDir, key: str) -> Job | None:
    """The job at a key of the run, or None.

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
    """The job of an attempt, or None if it was killed before it wrote the job. Raises as `job_at`."""
    return job_at(attempt.run, attempt.job_key)


def is_of_script(attempt: Attempt) -> bool:
    """Whether the attempt runs a script, of which clustertrain knows no steps. Raises as `job_at`."""
    job = job_of(attempt)
    return job is not None and job.is_script


def last_job(run: RunDir) -> Job | None:
    """The job of the last attempt that wrote one and was not refused, or None without one."""
    jobs = (job_of(attempt) for attempt in reversed(run.attempts()) if not was_refused(attempt))
    return next((job for job in jobs if job is not None), None) or job_at(run, run.job_key)


def newest_job(run: RunDir) -> Job | None:
    """The job of the run; without an attempt, of the newest submission. Raises as `job_at`."""
    if (job := last_job(run)) is not None:
        return job
    submissions = run.submissions()
    return job_at(run, run.snapshot_job_key(submissions[-1].digest)) if submissions else None
