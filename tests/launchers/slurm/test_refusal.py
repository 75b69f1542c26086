"""What a user reads if sbatch fails, among the lines that a site's plugins print."""

import os

import pytest

from clustertrain.errors import ClusterError
from clustertrain.job.model import Job
from clustertrain.launchers.scheduler.interface import Plan
from clustertrain.launchers.shell import Done
from clustertrain.launchers.slurm import launcher, preflight
from clustertrain.launchers.slurm.sbatch_errors import refusal, sorted_lines
from clustertrain.run.command_line import UNKNOWN

BANNER = [
    "sbatch: ----------------------------------------",
    "sbatch: Welcome to the cluster. Your account has used 80 % of its memory and gpu hours.",
    "sbatch: The login nodes are not for computing; your last session timed out.",
]
ERROR = "sbatch: error: Batch job submission failed: Invalid qos specification"


def text_of(*lines: str) -> list[str]:
    job = Job.model_validate({"name": "a", "function": "m:f"})
    done = Done(("sbatch",), 1, "", "\n".join(lines))
    return str(refusal(job, done, UNKNOWN)).splitlines()


@pytest.mark.parametrize("lines", [[*BANNER, ERROR], [ERROR, *BANNER], [*BANNER, ERROR, *BANNER]])
def test_the_error_counts_wherever_it_is_and_a_banner_does_not_choose_the_remedy(lines):
    first, beside, remedy = text_of(*lines)
    assert first == "SLURM refused the job a. sbatch printed: Invalid qos specification."
    assert beside.startswith("A plugin of the site printed: ")
    assert remedy.startswith("Name a quality of service")


@pytest.mark.parametrize("own", ["allocation failure: ", "sbatch: error: Batch job submission failed: "])
def test_slurms_own_reason_counts_although_a_plugin_prints_errors(own):
    """As SLURM 22.05 prints what a job_submit plugin says of a job that is then refused."""
    said = [line.replace("sbatch: ", "sbatch: error: ") for line in BANNER]
    first, beside, remedy = text_of(
        *said, "sbatch: error: Set a project.", f"{own}Invalid feature specification"
    )
    assert first == "SLURM refused the job a. sbatch printed: Invalid feature specification."
    assert beside.startswith("A plugin of the site printed: ")
    assert beside.endswith("; Set a project.")
    assert remedy.startswith("See slurm.constraint")


def test_another_error_names_the_cause_of_a_general_reason():
    general = "sbatch: error: Batch job submission failed: Requested node configuration is not available"
    first, remedy = text_of("sbatch: error: Memory specification can not be satisfied", general)
    assert "Requested node configuration is not available; Memory specification can not" in first
    assert remedy.startswith("See resources.memory_per_worker")


def test_a_sweep_with_too_many_points_names_the_limit():
    """As SLURM 22.05 prints it with MaxArraySize=5."""
    _, remedy = text_of("sbatch: error: Batch job submission failed: Invalid job array specification")
    assert "MaxArraySize" in remedy and "--grid" in remedy


@pytest.mark.parametrize(
    ("lines", "errors"),
    [
        (
            ["sbatch: unrecognized option '--mial-type=END'", 'Try "sbatch --help"'],
            ["unrecognized option '--mial-type=END'"],
        ),
        (["allocation failure: Invalid qos specification"], ["Invalid qos specification"]),
        (["sbatch_load error: no answer"], ["sbatch_load error: no answer"]),
        (["sbatch: fatal: no \x1b[31mconfiguration"], ["no \ufffd[31mconfiguration"]),
        ([], []),
    ],
)
def test_what_counts_as_an_error(lines, errors):
    assert sorted_lines("\n".join([*(BANNER if len(lines) > 1 else []), *lines]))[0] == errors


@pytest.fixture
def slow(tmp_path, monkeypatch):
    """A job, and an sbatch that does not end."""
    (tmp_path / "sbatch").write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return Job.model_validate({"name": "a", "function": "m:f"})


def test_a_plan_that_takes_slurm_too_long_is_no_refusal(slow, monkeypatch):
    monkeypatch.setattr(preflight, "TEST_S", 0.3)
    said = preflight.test_only(slow, Plan(b"", ()), os.environ, UNKNOWN, None)
    assert said == "SLURM has not checked the job: sbatch --test-only did not end within 0.3 s"


def test_an_sbatch_that_does_not_end_may_have_queued_the_job(slow, monkeypatch):
    monkeypatch.setattr(launcher, "_SUBMIT_S", 0.3)
    with pytest.raises(ClusterError, match=r"did not end within 0\.3 s(.|\n)*squeue --me"):
        launcher.LAUNCHER.scheduler.submit(slow, Plan(b"", ("sbatch",)), "{}", UNKNOWN)
