"""The job of this pod, as the ConfigMap or the reader's annotation has it."""

from __future__ import annotations

import os
from pathlib import Path

from clustertrain.job.file import parse_job
from clustertrain.job.model import Job
from clustertrain.node import variables
from clustertrain.run_files.records.provenance import CodeSource
from clustertrain.storage.record_file import decoded


def source_of_pod() -> CodeSource:
    """Read the state of the code's repositories at the submission; none of them if nobody submitted it."""
    path = Path(os.environ[variables.JOB]).with_name("source.json")
    return decoded(CodeSource, path.read_bytes(), str(path)) if path.exists() else CodeSource()


def job_of_pod() -> Job:
    """Read the job file that is mounted in the pod."""
    path = Path(os.environ[variables.JOB])
    return parse_job(path.read_text("utf-8"), str(path))
