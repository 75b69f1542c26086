"""What a user reads if sbatch fails: what it printed, whole, and where to look."""

import os

import pytest

from clustertrain.errors import ClusterError
from clustertrain.job.model import Job
from clustertrain.launchers.slurm import preflight, scheduler


@pytest.fixture
def job():
    return Job.model_validate({"name": "a", "function": "m:f"})


@pytest.fixture
def sbatch(tmp_path, monkeypatch):
    """`sbatch(script)` is the only command on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def put(script):
        (tmp_path / "sbatch").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "sbatch").chmod(0o755)

    return put


def test_a_plan_that_takes_slurm_too_long_is_no_refusal(sbatch, monkeypatch):
    sbatch("exec /bin/sleep 60")
    monkeypatch.setattr(preflight, "TEST_S", 0.3)
    said = preflight.test_only("", os.environ)
    assert said == "SLURM has not checked the job: sbatch --test-only did not end within 0.3 s"


def test_an_sbatch_that_does_not_end_may_have_queued_the_job(sbatch, job, monkeypatch):
    sbatch("exec /bin/sleep 60")
    monkeypatch.setattr(scheduler, "_SUBMIT_S", 0.3)
    with pytest.raises(ClusterError, match=r"did not end within 0\.3 s(.|\n)*squeue --me"):
        scheduler.SCHEDULER.submit(job, "", {})
