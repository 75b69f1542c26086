"""What SLURM answered about the end of a job outlives SLURM's own record of it."""

import pytest

from clustertrain.launchers.scheduler.interface import Answer
from clustertrain.launchers.slurm import queue as module
from clustertrain.launchers.slurm.queue import QueueState
from clustertrain.run.claims import claim_attempt
from clustertrain.run.folder import RunDir
from clustertrain.run.records import Result, SchedulerStart
from clustertrain.run.result import write_result
from run_status import status_of
from sample_records import sample_submission

PURGED = Answer({}, cluster="sim")


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A run with a job, and SLURM's answer about it, which a test sets."""
    run = RunDir.newest(str(tmp_path), "digits")
    run.submission("slurm", "12").write(sample_submission("12", cluster="sim"))

    class Slurm:
        answer = PURGED

        def answers(self, native: str, **fields) -> None:
            self.answer = Answer({"12": QueueState("12", native, cluster="sim", **fields)})

    slurm = Slurm()
    slurm.run = run
    monkeypatch.setattr(module, "query_queue", lambda job_ids: slurm.answer)
    return slurm


def test_the_end_that_was_seen_is_the_state_after_slurm_has_purged_the_job(slurm):
    assert status_of(slurm.run).standing.cause == "vanished"
    slurm.answers("RUNNING", nodes="n1")
    status_of(slurm.run)
    assert not slurm.run.scheduler_end("slurm", "12").exists()
    slurm.answers("FAILED", nodes="n1", reason="Why: what it means")
    seen = status_of(slurm.run)
    assert seen.standing.text.endswith(": what it means")
    slurm.answer = PURGED
    status = status_of(slurm.run)
    assert (status.state, status.standing) == ("lost", seen.standing)
    assert (status.standing.cause, status.job.queue.nodes) == ("vanished", "n1")
    assert [job.job_id for job in slurm.run.submissions()] == ["12"]


def test_a_later_start_of_the_job_is_not_judged_by_an_earlier_end(slurm):
    slurm.answers("FAILED", restarts=0, exit_code=3)
    status_of(slurm.run)
    attempt = claim_attempt(
        slurm.run, launcher="slurm", allocation=SchedulerStart("slurm", "sim", "12", 1, ("n1",))
    )
    slurm.answer = PURGED
    assert status_of(slurm.run).job.queue is None
    write_result(attempt, Result("done", "finished", 0, step=7))
    assert status_of(slurm.run).state == "done"
