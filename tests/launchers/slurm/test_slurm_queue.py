"""What needs no cluster; tests/slurm/test_watching.py asks a real one."""

import os
import time
from pathlib import Path

import pytest

from clustertrain.launchers.scheduler.interface import Handle
from clustertrain.launchers.scheduler.status import QueuedJob, QueuedStatus
from clustertrain.launchers.slurm.launcher import SlurmScheduler
from clustertrain.launchers.slurm.queue import (
    NATIVE_STATES,
    QueueState,
    cancel,
    position,
    query_queue,
    query_squeue,
)
from clustertrain.launchers.slurm.times import slurm_time_s
from clustertrain.run.records import SchedulerStart
from clustertrain.run.states import STATES


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """commands(squeue="…") puts shell scripts of these names on an otherwise empty PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def put(**scripts):
        for name, script in scripts.items():
            path = Path(tmp_path, name)
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(0o755)

    return put


@pytest.mark.parametrize("native", NATIVE_STATES)
def test_every_state_of_slurm_means_one_of_ours(native):
    meaning = NATIVE_STATES[native]
    assert meaning.cause in STATES[meaning.state].causes
    state = QueueState("1", native)
    assert [state.is_waiting, state.has_nodes, state.is_over].count(True) == 1


def test_the_reason_is_shown_in_slurms_words():
    assert QueueState("1", "PENDING", "Resources").text == "PENDING (Resources)"
    assert QueueState("1", "CANCELLED", "Priority").text == "CANCELLED"  # why it waited before


def test_the_end_of_a_job_has_its_reason():
    """Without it nothing tells why a job left no output: seen with a folder that only the login node has."""
    failed = QueueState("1", "FAILED", "JobLaunchFailure").end_of("SLURM job 1")
    assert failed == "SLURM job 1 failed before it could write a result: JobLaunchFailure"
    assert QueueState("1", "CANCELLED", "Priority").end_of("it").endswith(" through SLURM")


def test_columns_are_told_apart_whatever_the_reason_says(commands):
    commands(squeue="echo '7|PENDING|2|INVALID|sim|2026-11-21T16:09:55|N/A|0||May | be: held, (soon)|'")
    assert query_squeue(["7"])["7"] == QueueState(
        "7",
        "PENDING",
        "May | be: held, (soon)",
        2,
        cluster="sim",
        submitted_at=query_squeue(["7"])["7"].submitted_at,
    )
    assert query_squeue(["7"])["7"].submitted_at is not None


@pytest.mark.parametrize(
    ("state", "start", "shown"),
    [
        ("PENDING", "2026-11-21T16:20:59", "about 16:20"),
        ("PENDING", "2026-11-23T07:05:00", "about 2026-11-23 07:05"),
        ("PENDING", "2026-11-21T16:00:00", None),  # an estimate that is over is none
        ("PENDING", "N/A", None),
        ("RUNNING", "2026-11-21T16:20:59", None),
    ],
)
def test_status_shows_when_slurm_expects_to_start_a_job_that_waits(
    commands, monkeypatch, state, start, shown
):
    commands(squeue=f"echo '7|{state}|0|INVALID|sim|2026-11-21T16:09:55|{start}|0||Resources|'")
    job = QueuedJob(Handle("7"), query_squeue(["7"])["7"])
    now_s = slurm_time_s("2026-11-21T16:10:00")
    monkeypatch.setattr(time, "time", lambda: now_s)
    rows = QueuedStatus(None, None, "SLURM", job).job_rows
    assert dict(rows).get("starts") == shown


@pytest.mark.parametrize(
    ("job_id", "where"),
    [
        ("9", "1st"),
        ("7", "3rd"),
        ("8", "1st"),
        ("6_[1-3]", "2nd"),
        ("19", "12th"),
        ("21", "14th"),
        ("40", ""),
    ],
)
def test_the_position_is_counted_in_the_partition_by_priority(commands, job_id, where):
    rest = "".join(f"gpu|{n}\\n" for n in range(11, 30))
    commands(squeue=f"printf 'gpu|9\\ncpu|8\\ngpu|6_[1-3]\\ngpu|7\\n{rest}'", scontrol="exit 1")
    assert position(job_id) == (where and f"{where} in its partition's queue")


def test_jobs_that_slurm_hides_give_no_position(commands):
    commands(squeue="echo 'gpu|9'", scontrol="echo 'PrivateData = jobs,usage'")
    assert position("9") == ""


def test_the_users_own_filters_do_not_reach_squeue(commands, monkeypatch):
    """SQUEUE_PARTITION=low would hide all other jobs; another form of time could not be read."""
    for name in ("SQUEUE_PARTITION", "SQUEUE_FORMAT", "SLURM_TIME_FORMAT"):
        monkeypatch.setenv(name, "low")
    monkeypatch.setenv("SLURM_CONF", "kept")
    given = Path(os.environ["PATH"], "given")
    commands(squeue=f"export -p > {given}; exit 0")
    query_squeue(["7"])
    assert "low" not in given.read_text()
    assert "SLURM_CONF='kept'" in given.read_text()


def test_the_users_own_options_do_not_reach_scancel(commands, monkeypatch):
    """With SCANCEL_INTERACTIVE it would ask for ever: there is no terminal."""
    monkeypatch.setenv("SCANCEL_INTERACTIVE", "")
    given = Path(os.environ["PATH"], "given")
    commands(scancel=f"export -p > {given}; exit 0", scontrol="exit 0")
    cancel("7_1", only_waiting=True)
    assert "SCANCEL" not in given.read_text()


FORGOTTEN = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"


def test_accounting_remembers_what_the_controller_forgot(commands):
    """A fake, for words that are hard to come by; a real slurmdbd is asked in slurm/test_accounting.py."""
    commands(
        squeue=FORGOTTEN,
        sacct="echo Welcome  # a wrapper of the site\n"
        "echo '7|CANCELLED by 1000|sim|None assigned'; echo '8|OUT_OF_MEMORY|sim|node[1-2]'",
        scontrol="echo 'ClusterName             = sim'",
    )
    answer = query_queue(["7", "8", "9"])
    assert (answer.jobs["7"].meaning.state, answer.jobs["7"].nodes) == ("cancelled", "")
    assert answer.jobs["8"] == QueueState(
        "8", "OUT_OF_MEMORY", restarts=None, nodes="node[1-2]", cluster="sim"
    )
    assert "9" not in answer.jobs
    assert (answer.no_answer, answer.cluster) == (None, "sim")


def test_a_step_beside_a_run_has_nothing_of_the_allocation_around_it(monkeypatch):
    """In a shell of `salloc --mem=8G` srun wanted 8 GB of the run's job: "Memory required by task is not
    available"."""
    start = SchedulerStart("slurm", "sim", "7", 0, ("n1.site",))
    for name in [name for name in os.environ if name.startswith(("SLURM_", "SRUN_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_CONF", "kept")
    argv = SlurmScheduler().argv_on(start, "n1", ["hostname"])
    assert argv[0] == "srun" and "--nodelist=n1.site" in argv
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "8192")
    assert SlurmScheduler().argv_on(start, "n1", ["hostname"]) == ["env", "-u", "SLURM_MEM_PER_NODE", *argv]
