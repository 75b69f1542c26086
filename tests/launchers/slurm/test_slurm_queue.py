"""What needs no cluster; tests/slurm/test_slurm_status.py asks a real one."""

import os
from pathlib import Path

import pytest

from clustertrain.errors import ClusterError
from clustertrain.job.model import Job
from clustertrain.launchers.scheduler.interface import Sent
from clustertrain.launchers.slurm import preflight, scheduler
from clustertrain.launchers.slurm.queue import (
    cancel,
    query_squeue,
    state_of,
)
from clustertrain.launchers.slurm.scheduler import SCHEDULER
from support.commands import write_program


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """commands(squeue="…") puts shell scripts of these names on an otherwise empty PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def put(**scripts):
        for name, script in scripts.items():
            write_program(Path(tmp_path, name), script)

    return put


def test_the_reason_is_shown_in_slurms_words():
    assert state_of("PENDING", "Resources", "", None).text == "PENDING (Resources)"
    assert state_of("CANCELLED", "Priority", "", None).text == "CANCELLED"  # why it waited before
    # Nothing else tells why a job left no output: seen with a folder that only the login node has.
    assert state_of("FAILED", "JobLaunchFailure", "", None).text == "FAILED (JobLaunchFailure)"
    assert state_of("FAILED", "NonZeroExitCode", "", 1).text == "FAILED"
    held = "REQUEUE_HOLD (was requeued and is held: scontrol release JOBID: job requeued in held state)"
    assert state_of("REQUEUE_HOLD", "job requeued in held state", "", None).text == held


def test_columns_are_told_apart_whatever_the_reason_says(commands):
    commands(squeue="echo '7|PENDING|2|INVALID|N/A|0||May | be: held, (soon)|'")
    found = query_squeue(["7"])["7"]
    assert (found.text, found.start, found.rows) == (
        "PENDING (May | be: held, (soon))",
        "2",
        {"time left": "", "requeued": "2 times"},
    )


@pytest.mark.parametrize(
    ("name", "asks"),
    [
        ("SQUEUE_PARTITION", lambda: query_squeue(["7"])),  # it would hide all other jobs
        ("SLURM_TIME_FORMAT", lambda: query_squeue(["7"])),  # another form of time could not be read
        ("SCANCEL_INTERACTIVE", lambda: cancel("7_1", only_waiting=True)),  # it would ask for ever
    ],
)
def test_the_users_own_options_do_not_reach_the_commands_of_slurm(commands, monkeypatch, name, asks):
    monkeypatch.setenv(name, "low")
    monkeypatch.setenv("SLURM_CONF", "kept")
    given = Path(os.environ["PATH"], "given")
    commands(squeue=f"export -p > {given}", scancel=f"export -p > {given}", scontrol="exit 0")
    asks()
    assert f"export {name}=" not in given.read_text()
    assert "SLURM_CONF='kept'" in given.read_text()


def test_a_step_beside_a_run_has_nothing_of_the_allocation_around_it(monkeypatch):
    """In a shell of `salloc --mem=8G` srun wanted 8 GB of the run's job: "Memory required by task is not
    available"."""
    for name in [name for name in os.environ if name.startswith(("SLURM_", "SRUN_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_CONF", "kept")
    argv = SCHEDULER.command_on(Sent("7"), "n1.site", ["hostname"])
    assert argv[0] == "srun" and "--nodelist=n1.site" in argv
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "8192")
    without = ["env", "-u", "SLURM_MEM_PER_NODE"]
    assert SCHEDULER.command_on(Sent("7"), "n1.site", ["hostname"]) == [*without, *argv]


# ------------------------------------------------------------------------------------------- submission


def test_a_plan_that_takes_slurm_too_long_is_no_refusal(commands, monkeypatch):
    commands(sbatch="exec /bin/sleep 60")
    monkeypatch.setattr(preflight, "TEST_S", 0.3)
    said = preflight.test_only("", os.environ)
    assert said == "SLURM has not checked the job: sbatch --test-only did not end within 0.3 s"


def test_an_sbatch_that_does_not_end_may_have_queued_the_job(commands, monkeypatch):
    commands(sbatch="exec /bin/sleep 60")
    monkeypatch.setattr(scheduler, "SUBMIT_S", 0.3)
    job = Job.model_validate({"name": "a", "function": "m:f"})
    with pytest.raises(ClusterError, match=r"did not end within 0\.3 s(.|\n)*squeue --me"):
        SCHEDULER.submit(job, "", {})
