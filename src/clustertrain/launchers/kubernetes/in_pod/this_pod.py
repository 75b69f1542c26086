"""The job of this pod, as the ConfigMap or the reader's annotation has it."""

from __future__ import annotations

import os
from pathlib import Path

from clustertrain import variables
from clustertrain.job.file import parse_job
from clustertrain.job.model import Job


def job_of_pod() -> Job:
    """Read the job file that is mounted in the pod."""
    path = Path(os.environ[variables.JOB])
    return parse_job(path.read_text(), str(path))
