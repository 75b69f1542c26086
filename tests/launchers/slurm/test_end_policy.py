"""The state and the text with which a job of SLURM ends a run."""

import math
import time

import pytest

from clustertrain.job.model import Job
from clustertrain.launchers.agent.node import NodeStart
from clustertrain.launchers.slurm.agent.allocation import settings_of
from clustertrain.launchers.slurm.agent.end_policy import SlurmEndPolicy
from clustertrain.launchers.slurm.agent.mailbox import Mailbox
from clustertrain.node import variables
from clustertrain.run_files.admission import Options
from clustertrain.run_files.claims import claim_attempt
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.records.scheduler import Arrival, SchedulerStart
from clustertrain.run_files.rendezvous import report_failure
from clustertrain.run_files.streams.history import events_of_attempt

PREEMPTED = "JobState=RUNNING PreemptTime=2026-11-21T16:09:55 Restarts=0"
AGAIN = "Submit the job again to continue."


class AnsweredMailbox(Mailbox):
    """The batch shell's part is a text."""

    down = ""

    def query_job(self) -> str:
        return (PREEMPTED if self.has_term() else "JobState=RUNNING Restarts=0") + self.down


class LivingRay:
    """Ray on the head's node lives."""

    def code(self) -> None:
        return None


@pytest.fixture
def policy(tmp_path):
    def make(received: str, **slurm) -> SlurmEndPolicy:
        job = Job.model_validate({"name": "a", "function": "m:f", "slurm": slurm})
        record = SchedulerStart("slurm", "1", {}, "0", ("node1", "node2"))
        run = RunDir.newest(str(tmp_path), "a")
        attempt = claim_attempt(run, launcher="slurm", allocation=record)
        start = NodeStart(job, attempt.run, Options(), record, 0, tmp_path, (), settings_of(job), "")
        if received:
            (tmp_path / received).touch()
        mail = AnsweredMailbox(tmp_path)
        return SlurmEndPolicy(start, attempt, LivingRay(), [], mail, None)

    return make


@pytest.mark.parametrize(
    ("slurm", "received", "expected"),
    [
        ({"at_time_limit": "requeue"}, "lead", ("preempted", False)),
        ({}, "lead", ("stopped", True)),
        ({}, "term", ("preempted", False)),
        ({"requeue": False}, "term", ("stopped", True)),
    ],
)
def test_who_is_requeued_is_not_asked_to_submit_again(policy, monkeypatch, slurm, received, expected):
    ending = policy(received, **slurm)
    monkeypatch.setenv(variables.AT_TIME_LIMIT, ending.start.job.slurm.at_time_limit)
    ending._end_of_the_job(True)
    request = ending.attempt.stop.read()
    assert (request.state, AGAIN in request.text) == expected


@pytest.mark.parametrize(
    ("is_training", "promised"), [(True, "finish this step and save"), (False, "nothing")]
)
def test_before_the_workers_start_no_save_is_promised(policy, is_training, promised):
    ending = policy("term")
    result = ending.end_now(is_training)
    (note,) = [event for event in events_of_attempt(ending.attempt) if event["kind"] == "note"]
    assert promised in note["text"]
    assert (result is None) == is_training


@pytest.mark.parametrize(("code", "state"), [(None, "lost"), (3, "failed")])
def test_a_node_without_ray_is_lost_and_one_with_a_wrong_installation_is_not(policy, code, state):
    ending = policy("")
    arrival = Arrival("node2", error="Ray on node2 ended with code 3.", exit_code=code)
    report_failure(ending.attempt, 1, arrival)
    result = ending.end_now(False)
    assert (result.state, "node2" in result.text) == (state, True)


@pytest.mark.parametrize("answer", ["", "slurm_load_jobs error: Unable to contact slurm controller"])
def test_a_controller_that_does_not_answer_before_the_time_limit_cuts_no_save_off(policy, answer):
    ending = policy("lead")
    ending.mail.query_job = lambda: answer
    assert ending.end_now(True) is None
    assert (ending.ending.cause, ending.ending.deadline) == ("time_limit", math.inf)
    (ending.mail._folder / "term").touch()  # at the limit SLURM asks for the end
    assert ending.end_now(True) is None
    assert ending.ending.cause == "time_limit"
    assert ending.ending.deadline - time.monotonic() < 30, "SLURM's usual time to kill"


def test_slurms_time_to_kill_counts_from_its_signal_and_not_from_a_late_answer(policy):
    ending = policy("term")
    ending.mail.query_job = lambda: time.sleep(1) or "JobState=COMPLETING Restarts=0\nKillWait = 10 sec"
    began = time.monotonic()
    ending.end_now(True)
    assert ending.ending.deadline - began == pytest.approx(7, abs=0.5)


DOWN = "\nDown: node2|down*|2026-11-24T12:39:11|Not responding\n"
LOST = "Node node2 was lost: SLURM has it as down* since 2026-11-24T12:39:11 (Not responding)."


@pytest.mark.parametrize("received", ["term", ""])
def test_after_the_loss_of_a_node_no_save_is_waited_for(policy, tmp_path, received):
    """SLURM sends TERM to the others then; srun reports the loss."""
    ending = policy(received)
    ending.mail.down = DOWN
    (tmp_path / "errors").write_text("srun: error: Node failure on node2\n")
    result = ending.end_now(True)
    assert (result.state, result.cause, result.text) == ("lost", "node_fail", LOST)
    assert ending.attempt.stop.read() is None


def test_an_agent_that_srun_reports_as_ended_is_the_cause_unless_slurm_ends_the_job(policy, tmp_path):
    ending = policy("", requeue=False)
    (tmp_path / "errors").write_text("srun: error: node2: task 1: Killed\n")
    assert ending.find_ended_agent().startswith("The agent on node2 has ended, as srun reports: Killed.")
    (tmp_path / "term").touch()
    ending.end_now(True)
    assert ending.find_ended_agent() == ""
