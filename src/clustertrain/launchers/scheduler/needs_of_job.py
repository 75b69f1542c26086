"""What a job needs of a scheduler: hosts, CPUs, GPUs, memory, variables, and the time for a last save."""

from __future__ import annotations

import math
import os

from clustertrain.errors import JobError
from clustertrain.job.model import Job
from clustertrain.job.references import referred_names
from clustertrain.launchers.scheduler.needs import Needs
from clustertrain.node import variables
from clustertrain.run_files.admission import Options
from clustertrain.run_files.streams.history import events_of_last_attempts

RAY_AND_DRIVER_BYTES = 2 << 30
"""Memory for Ray's own processes and the driver, in addition to that of the workers of a host."""


def needs_of(job: Job, options: Options, launcher: str, *, reads_storage: bool = True) -> Needs:
    """Return what a job needs of the launcher.

    With `reads_storage` the lead time follows from the saves of the run's last attempts.

    Raises:
        JobError: the path of the job file has control characters.
    """
    job_file = options.command.job_file
    if not job_file.isprintable():
        raise JobError(f"{job_file!r}: a path with control characters\nrename the file or its folder")
    shape, workers = job.resources, job.resources.workers_per_node
    memory = shape.memory_per_worker_bytes
    return Needs(
        launcher,
        job_file,
        hosts=job.node_counts[-1],
        # Rounded first: as floats, 10 workers × 1.1 CPUs are 11.000000000000002.
        cpus=max(1, math.ceil(round(workers * shape.cpus_per_worker, 6))),
        gpus=workers * shape.gpus_per_worker,
        memory_bytes=None if memory is None else workers * memory + RAY_AND_DRIVER_BYTES,
        lead_time=lambda: lead_time_s(job, measured_save_s(job) if reads_storage else None),
        variables=(variables.SUBMISSION, *referred_names(job.start_texts)),
        options=options,
    )


def environment_of(job: Job, submission: str) -> dict[str, str]:
    """Return what a job gets, with its values: the submission, and the variables of the job file."""
    referred = {name: os.environ[name] for name in referred_names(job.start_texts) if name in os.environ}
    return {variables.SUBMISSION: submission, **referred}


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
