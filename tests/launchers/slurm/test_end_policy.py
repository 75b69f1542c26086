"""The state and the text with which a job of SLURM ends a run."""

import pytest

from clustertrain import variables
from clustertrain.job.model import Job
from clustertrain.launchers.slurm.agent.allocation import Allocation
from clustertrain.launchers.slurm.agent.end_policy import SlurmEndPolicy
from clustertrain.launchers.slurm.agent.mailbox import Mailbox
from clustertrain.launchers.slurm.agent.node import Start
from clustertrain.node.signals import ReceivedSignals
from clustertrain.run.admission import Options
from clustertrain.run.claims import claim_attempt
from clustertrain.run.folder import RunDir

PREEMPTED = "JobState=RUNNING PreemptTime=2026-11-21T16:09:55 Restarts=0"
AGAIN = "Submit the job again to continue."


class AnsweredMailbox(Mailbox):
    """The batch shell's part is a text."""

    def query_job(self) -> str:
        return PREEMPTED if self.has_term() else "JobState=RUNNING Restarts=0"


@pytest.mark.parametrize(
    ("slurm", "received", "expected"),
    [
        ({"at_time_limit": "requeue"}, "lead", ("preempted", False)),
        ({}, "lead", ("stopped", True)),
        ({}, "term", ("preempted", False)),
        ({"requeue": False}, "term", ("stopped", True)),
    ],
)
def test_who_is_requeued_is_not_asked_to_submit_again(tmp_path, monkeypatch, slurm, received, expected):
    job = Job.model_validate({"name": "a", "function": "m:f", "slurm": slurm})
    monkeypatch.setenv(variables.AT_TIME_LIMIT, job.slurm.at_time_limit)
    attempt = claim_attempt(RunDir.newest(str(tmp_path), "a"), launcher="slurm")
    allocation = Allocation(None, "1", 0, ("node1",), 0, None, 1, 0, None)
    start = Start(job, attempt.run, Options(), allocation, tmp_path, ())
    (tmp_path / received).touch()
    policy = SlurmEndPolicy(start, attempt, None, ReceivedSignals(), AnsweredMailbox(tmp_path), None)
    policy._end_of_the_job(True)
    request = attempt.stop.read()
    assert (request.state, AGAIN in request.text) == expected
