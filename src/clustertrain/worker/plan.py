"""What the controller tells every worker of one start of the group."""

from __future__ import annotations

from dataclasses import dataclass

from clustertrain.job.file import parse_job
from clustertrain.job.model import Job
from clustertrain.run.attempt_ref import AttemptRef
from clustertrain.run.folder import JOB_YAML


def start_line(restart: int) -> str:
    """What begins a start's part in the log of a rank: all starts of an attempt write to one."""
    return f"clustertrain: restart {restart} begins"


@dataclass(frozen=True)
class Plan:
    """What was decided when the restart was claimed; it travels from the controller to the workers."""

    ref: AttemptRef
    restart: int
    job_yaml: str
    checkpoint: str | None  # the name of the one to resume from

    @property
    def job(self) -> Job:
        return parse_job(self.job_yaml, JOB_YAML)
