"""The plan of one start of the worker group; the driver sends it to every worker."""

from __future__ import annotations

from dataclasses import dataclass, field

from clustertrain.job.file import parse_job
from clustertrain.job.model import Job
from clustertrain.run_files.attempt_ref import AttemptRef
from clustertrain.run_files.folder.run_dir import JOB_YAML


@dataclass(frozen=True)
class RestartPlan:
    """The decisions made when the restart was claimed."""

    ref: AttemptRef
    restart: int
    job_yaml: str
    env: dict[str, str] = field(repr=False)  # of the job, with the values of its references
    checkpoint: str | None  # the one to resume from, None for a fresh start
    resumes_script: bool  # a script left a file in its checkpoint folder
    alarms: int  # earlier starts of this attempt that a watchdog ended
    claimed_s: float  # when the restart was claimed, by the driver's clock
    function_seed: int  # of the random states with which a function begins
    is_tried: bool  # the run has finished a step with this job and this code
    in_memory: bool  # the checkpoint is in the memory of each node, not in the storage

    @property
    def job(self) -> Job:
        return parse_job(self.job_yaml, JOB_YAML).model_copy(update={"env": self.env})
