"""Stopping a run of this machine; tests/slurm/test_watching.py stops those that SLURM has."""

import threading

import pytest

from clustertrain.errors import ClusterError, JobError
from clustertrain.launchers.scheduler import stop
from clustertrain.launchers.scheduler.stop import stop_run
from clustertrain.launchers.slurm.launcher import LAUNCHER
from clustertrain.run.claims import claim_attempt
from clustertrain.run.folder import RunDir
from clustertrain.run.records import Result
from clustertrain.run.result import write_result
from sample_records import sample_submission


@pytest.fixture
def run(tmp_path):
    return RunDir.newest(str(tmp_path), "digits")


def test_a_stop_is_a_file_for_a_run_that_lives(run):
    attempt, said = claim_attempt(run), []
    stop_run(LAUNCHER.scheduler, run, said.append, wait=False)
    assert attempt.stop.read().cause == "user"
    assert said[0].startswith("sent a stop request to pid ")


def test_it_waits_for_the_result_and_tells_it(run):
    attempt, said = claim_attempt(run), []

    def end_when_asked():
        while attempt.stop.read() is None:
            ended.wait(0.05)
        write_result(attempt, Result("stopped", "user", 75, step=7))

    ended = threading.Event()
    worker = threading.Thread(target=end_when_asked)
    worker.start()
    stop_run(LAUNCHER.scheduler, run, said.append)
    worker.join()
    assert said[1] == "digits: stopped (user) at step 7"


def test_it_does_not_wait_for_ever(run, monkeypatch):
    monkeypatch.setattr(stop, "_BEYOND_GRACE_S", 0.0)
    attempt, said = claim_attempt(run), []
    attempt.run.store.write_atomic(attempt.job_key, b"name: digits\nfunction: m:f\nfailures: {grace: 1s}\n")
    stop_run(LAUNCHER.scheduler, run, said.append)
    assert said[1] == "it has not ended within 1 s"


def test_what_does_not_run_cannot_be_stopped(run):
    write_result(claim_attempt(run), Result("stopped", "user", 75))
    with pytest.raises(JobError, match=r"attempt 1 is stopped\.\nThere is nothing to stop"):
        stop_run(LAUNCHER.scheduler, run, print)


def test_what_waits_can_only_be_cancelled_where_slurm_is(run, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    run.submission("slurm", "12").write(sample_submission("12"))
    with pytest.raises(ClusterError, match="digits is queued, and squeue is not on PATH"):
        stop_run(LAUNCHER.scheduler, run, print)
