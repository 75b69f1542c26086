"""A run saves when it is asked to (`ckpt save`) or by its clock (`checkpoint.every: auto`), and goes on."""

import signal
import sys

import pytest

from clustertrain.checkpoints.manifest import names, read_manifest
from clustertrain.cli.checkpoints import save_now
from clustertrain.errors import JobError
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.recorded_job import record_job
from support.commands import ran
from support.sample_records import sample_claim
from support.whole_run import FAULTY, ONE_WORKER, of_one_process, same_weights

SLOW = {"task": "faulty:Faulty", "train": {"epochs": 900, "batch_size": 4, "log_every": 1}, **ONE_WORKER}


def test_a_run_saves_on_request_and_continues(make_run):
    run = make_run("asked", args={"step_s": 0.2}, checkpoint={"every": {"epochs": 500}}, **SLOW).start()

    def saved() -> str:
        argv = [sys.executable, "-m", "clustertrain.cli", "ckpt", "save", str(run.job_file)]
        return ran(argv, code=0, timeout=120).stdout.strip()

    run.wait_for_step(1)
    assert [saved()] == [str(name) for name in names(run.run_dir.checkpoints)]
    beside = ["sh", "-c", "kill -0 $CLUSTERTRAIN_PID && echo rank $RANK; exit 7"]
    argv = [sys.executable, "-m", "clustertrain.cli", "exec", str(run.job_file), "--rank", "0", "--", *beside]
    done = ran(argv, timeout=120)
    assert (done.returncode, done.stdout) == (7, "rank 0\n")
    second = saved()
    assert len(names(run.run_dir.checkpoints)) == 2 and str(names(run.run_dir.checkpoints)[-1]) == second
    run.process.send_signal(signal.SIGTERM)
    run.end(75)
    with pytest.raises(JobError, match="asked does not train now"):
        next(save_now(run.run_dir))


def test_an_entry_point_with_its_own_loop_is_refused(tmp_path, job):
    attempt = RunDir.newest(str(tmp_path / "runs"), "own").attempt(1)
    attempt.claim.create(sample_claim(world_size=1))
    record_job(attempt, job(task=None, train=None, script="train.py"))
    with pytest.raises(JobError, match="own is a script, which saves its own checkpoints"):
        next(save_now(attempt.run))


@pytest.mark.nightly  # in CI: AutoSave in worker/test_requests_to_ranks.py
def test_saves_by_the_measured_stall_change_nothing(make_run):
    sections = {"checkpoint": {"every": "auto", "keep_last": 9}, "failures": {"mtbf": "0.4s"}}
    run = make_run("auto", args={"step_s": 0.2}, **FAULTY, **sections, **ONE_WORKER)
    run.start().end(0)
    shelf = run.run_dir.checkpoints
    reasons = [read_manifest(shelf, name).reason for name in names(shelf)]
    assert "minutes" in reasons[:-1] and reasons[-1] == "end"
    assert same_weights(run.weights(), of_one_process(run))
