"""How long before the end of its time a job has to be warned, so that a last save is possible."""

from __future__ import annotations

from contextlib import suppress

from clustertrain.errors import StorageError
from clustertrain.job.model import Job
from clustertrain.run.folder import Attempt, RunDir
from clustertrain.run.streams.history import events_of_attempt

_ATTEMPTS_MEASURED = 3


def lead_time_s(job: Job, measured_save_s: float | None = None) -> float:
    """Seconds from the warning to the end: 2 × the last save + 30 s, at least 60 s; the surplus is for the
    step before the save and the end after it. Before the first measured save it is the grace time + 60 s."""
    if measured_save_s is None:
        return job.failures.grace_s + 60.0
    return max(60.0, 2.0 * measured_save_s + 30.0)


def measured_save_s(job: Job) -> float | None:
    """The duration in seconds of the slowest save in the newest of the run's last 3 attempts that has a save.
    None if none of them has one, or the storage cannot be read now."""
    with suppress(StorageError):
        run = RunDir.newest(job.storage.location.with_patience(0), job.name)
        for attempt in reversed(run.attempts()[-_ATTEMPTS_MEASURED:]):
            if (slowest := max(_saves_s(attempt), default=None)) is not None:
                return slowest
    return None


def _saves_s(attempt: Attempt) -> list[float]:
    saves = (event for event in events_of_attempt(attempt) if event["kind"] == "checkpoint")
    return [float(event["write_s"]) for event in saves if "write_s" in event]
