"""How long before the end of its time a job has to be warned, so that a last save is possible."""

from __future__ import annotations

from clustertrain.job.model import Job
from clustertrain.run.streams.history import events_of_last_attempts


def lead_time_s(job: Job, measured_save_s: float | None = None) -> float:
    """Return the seconds from the warning to the end: 2 × the last save + 30 s, at least 60 s.

    The surplus is for the step before the save and the end after it. Before the first measured save it is the
    grace time + 60 s.
    """
    if measured_save_s is None:
        return job.failures.grace_s + 60.0
    return max(60.0, 2.0 * measured_save_s + 30.0)


def measured_save_s(job: Job) -> float | None:
    """Return the seconds of the slowest save in the newest of the run's last 3 attempts that has a save.

    Return None if none of them has one, or the storage cannot be read now.
    """
    for events in events_of_last_attempts(job.storage.location, job.name):
        saves = (event for event in events if event["kind"] == "checkpoint" and "write_s" in event)
        if (slowest := max((float(save["write_s"]) for save in saves), default=None)) is not None:
            return slowest
    return None
