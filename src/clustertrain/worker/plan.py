"""What the controller sends to every worker of one start of the worker group."""

from __future__ import annotations

from dataclasses import dataclass

from clustertrain.job.file import parse_job
from clustertrain.job.model import Job
from clustertrain.run.attempt_ref import AttemptRef
from clustertrain.run.folder import JOB_YAML


def start_line(restart: int) -> str:
    """The first line of a start in the log of a rank, which all starts of an attempt write to."""
    return f"clustertrain: restart {restart} begins"


@dataclass(frozen=True)
class Plan:
    """What was decided when the restart was claimed; the controller sends it to the workers."""

    ref: AttemptRef
    restart: int
    job_yaml: str
    checkpoint: str | None  # the one to resume from, None for a fresh start

    @property
    def job(self) -> Job:
        return parse_job(self.job_yaml, JOB_YAML)
