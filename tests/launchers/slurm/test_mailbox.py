"""Why SLURM ends a job, from its own words as measured with SLURM 22.05; and what two processes share."""

import errno
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from clustertrain.launchers.slurm.agent.mailbox import Mailbox, ended_agent, ending_of, lost_node

pytestmark = pytest.mark.slow

NOW = datetime(2026, 11, 21, 16, 0, 0)
SLURMS_TIME = f"\nConfiguration data as of {NOW.isoformat()}"
KILL_WAIT = f"{SLURMS_TIME}\nKillWait                = 10 sec"


def line(state, **fields):
    words = {"JobId": "5", "JobState": state, "Restarts": "0", "PreemptTime": "None", **fields}
    return " ".join(f"{key}={value}" for key, value in words.items()) + KILL_WAIT


def ending(answer, *, restart=0, is_lead=False):
    return ending_of(answer, restart=restart, is_lead=is_lead, asked=100.0)


def at(seconds):
    return (NOW + timedelta(seconds=seconds)).isoformat()


@pytest.mark.parametrize(
    ("answer", "is_lead", "restart", "cause"),
    [
        (line("RUNNING", PreemptTime=at(-1), EndTime=at(15)), False, 0, "preempted"),
        (line("RUNNING", PreemptTime=at(-1), EndTime=at(15)), True, 0, "preempted"),
        (line("COMPLETING", PreemptTime=at(0)), False, 0, "preempted"),
        (line("PREEMPTED"), False, 0, "preempted"),
        (line("COMPLETING"), False, 0, "cancelled"),
        (line("CANCELLED"), False, 0, "cancelled"),
        (line("COMPLETING", Restarts="1"), False, 0, "requeued"),
        (line("PENDING", Restarts="1"), False, 0, "requeued"),
        (line("COMPLETING", Restarts="1"), False, 1, "cancelled"),
        (line("RUNNING", EndTime=at(60)), True, 0, "time_limit"),
        (line("TIMEOUT"), False, 0, "time_limit"),
        (line("COMPLETING", RunTime="00:01:03", TimeLimit="00:01:00"), False, 0, "time_limit"),
        (line("COMPLETING", RunTime="00:00:40", TimeLimit="00:01:00"), False, 0, "cancelled"),
        (line("COMPLETING", RunTime="00:00:40", TimeLimit="UNLIMITED"), False, 0, "cancelled"),
        (line("RUNNING", EndTime=at(60)), False, 0, "terminated"),
        ("", False, 0, "terminated"),
        ("", True, 0, "time_limit"),
        ("slurm_load_jobs error: Unable to contact slurm controller", False, 0, "terminated"),
    ],
)
def test_the_cause_of_an_end_follows_from_what_slurm_says_of_the_job(answer, is_lead, restart, cause):
    assert ending(answer, is_lead=is_lead, restart=restart).cause == cause


STARTED = line("RUNNING", PreemptTime=at(0), EndTime=at(15))


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [
        (STARTED, 15 + 10 - 3),
        (line("COMPLETING", EndTime=at(0)), 10 - 3),
        (line("RUNNING", PreemptTime=at(-9), EndTime=at(-5)), 10 - 3),  # an end in the past is now
        (STARTED.replace(SLURMS_TIME, ""), 10 - 3),
        ("", 30 - 3),  # SLURM's default KillWait
    ],
)
def test_the_deadline_leaves_three_seconds_before_the_kill(answer, seconds):
    assert ending(answer).deadline == pytest.approx(100 + seconds)


def test_silence_ends_after_five_seconds_and_an_old_answer_is_none(tmp_path):
    (tmp_path / "answer").write_text("JobState=RUNNING")
    began = time.monotonic()
    assert Mailbox(tmp_path).query_job() == ""
    assert 4.9 < time.monotonic() - began < 15


def test_on_a_full_disk_the_verdict_is_a_link(tmp_path, monkeypatch):
    def full(path, text):
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    Mailbox(tmp_path).write_verdict("requeue", 75)
    assert [path.name for path in tmp_path.iterdir()] == ["verdict"]
    assert (tmp_path / "verdict").readlink() == Path("requeue 75")


# As srun of SLURM 22.05 printed it for a program that is missing on node2, one that was killed there, and a
# node whose power failed.
NO_PROGRAM = """\
srun: error: node2: task 1: Exited with exit code 2
slurmstepd-node2: error: execve(): /tmp/only/py: No such file or directory
"""
KILLED = "srun: error: node2: task 1: Killed\nsrun: Force Terminated StepId=3.0\n"
NODE_FAILURE = """\
srun: error: Node failure on node2
srun: Job step aborted: Waiting up to 12 seconds for job step to finish.
slurmstepd-node1: error: *** STEP 1.0 ON node1 CANCELLED AT 2026-11-24T12:39:11 DUE TO NODE FAILURE ***
"""
NO_LAUNCH = "srun: error: Task launch for StepId=5.0 failed on node node2: Job credential expired\n"


@pytest.mark.parametrize(
    ("errors", "how", "words"),
    [
        (NO_PROGRAM, "Exited with exit code 2", "execve(): /tmp/only/py: No such file or directory. See "),
        (KILLED, "Killed", "The lines of that node"),
        (NO_LAUNCH, "Job credential expired", "The lines of that node"),
    ],
    ids=["missing", "killed", "not launched"],
)
def test_what_srun_reports_of_an_agent_is_the_cause(errors, how, words):
    first, rest = ended_agent(f"node1: nothing\n{errors}").split("\n", 1)
    assert first == f"The agent on node2 has ended, as srun reports: {how}."
    assert rest.startswith(words)


def test_lines_of_srun_that_report_no_end_end_nothing():
    printed = (
        "slurmstepd-node2: error: couldn't chdir to `/a': No such file or directory: going to /tmp instead\n"
    )
    assert ended_agent(printed) == lost_node(printed, "JobState=RUNNING") == ended_agent("") == ""
    assert ended_agent(NODE_FAILURE) == ""
