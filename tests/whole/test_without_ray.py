"""`run --no-ray`: the same files, results and restarts, while no process of the run imports Ray.

test_last_step.py, test_resume.py and test_entry_points.py start the same runs with Ray and without.
"""

import json
import os
import signal
from pathlib import Path

import pytest

from support.example_modules import clustertrain
from support.leftovers import children, kill_together
from support.whole_run import FAULTY, ONE_WORKER, books_add_up, of_one_process, same_weights

pytestmark = pytest.mark.parametrize("start", ["without Ray"], indirect=True)

SAVES = {"checkpoint": {"every": {"steps": 4}, "keep_last": 2}}


def test_a_run_ends_with_the_same_weights_and_is_a_run_as_any_other(make_run, start, uninterrupted):
    limits = {"failures": {"watchdog": {"first_step": "1000h"}}}
    run = make_run("plain", **FAULTY, **SAVES, **limits, args={"says": "each rank begins"})
    output = start(run).end(0)
    assert (output.count("each rank begins"), output.count("rank 0 prints here")) == (1, 1)
    assert same_weights(run.weights(), uninterrupted(2))
    assert (run.result.state, run.result.step, run.result.restarts) == ("done", 21, 0)
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["00000020-1.0", "00000021-1.0"]
    causes = {(loss.category, loss.cause) for loss in books_add_up(run).losses()}
    assert ("start", "driver") in causes and ("start", "Ray") not in causes
    status = json.loads(clustertrain("status", str(run.job_file), "--json").stdout)
    assert (status["state"], status["step"]) == ("done", 21)
    (started,) = [event for event in run.events if event["kind"] == "group_started"]
    assert [each["rank"] for each in started["ranks"]] == [0, 1]
    assert "start 0" in clustertrain("logs", str(run.job_file), "--rank", "1").stdout


def test_the_ranks_import_from_the_pythonpath_of_env(make_run, start, tmp_path):
    for folder, text in (("code", "import beside\ndef train(config): beside.note()"), ("more", NOTES)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / {"code": "needs.py", "more": "beside.py"}[folder]).write_text(text)
    keys = {"function": "needs:train", "code": str(tmp_path / "code")}
    run = make_run("paths", **keys, env={"PYTHONPATH": str(tmp_path / "more")}, **ONE_WORKER)
    start(run).end(0)
    assert run.rank_log(0).count("found beside") == 1


NOTES = """
def note():
    print("found beside", flush=True)
"""
CHANGES = """
import os, torch
with open("noted", "a") as file:
    print(os.getpid(), os.environ.get("CHANGED"), torch.get_default_dtype(), file=file)
os.environ["CHANGED"] = "yes"
torch.set_default_dtype(torch.float64)
def train(config): pass
"""


def test_what_the_import_changes_in_a_rank_reaches_neither_driver_nor_another_rank(make_run, start, tmp_path):
    code = tmp_path / "code"
    code.mkdir()
    (code / "changes.py").write_text(CHANGES)
    run = make_run("changes", function="changes:train", code=str(code))
    start(run).end(0)
    pids, *states = zip(*(line.split() for line in (code / "noted").read_text().splitlines()), strict=True)
    assert len(set(pids)) == 2, "two ranks"
    assert str(run.driver_pid()) not in pids
    assert {*map(tuple, zip(*states, strict=True))} == {("None", "torch.float32")}


def test_the_driver_starts_again_after_kill_9_and_nohup_outlives_its_terminal(make_run, start, uninterrupted):
    run = make_run("bereft", **FAULTY, **SAVES, args={"step_s": 0.2})
    start(run, within=["nohup"]).wait_for_event("checkpoint")
    run.process.send_signal(signal.SIGHUP)
    kill_together(run.driver_pid())
    assert "restarting the driver and the workers" in run.end(0)
    assert same_weights(run.weights(), uninterrupted(2))


def test_a_killed_fork_server_is_started_again_at_the_next_start(make_run, start):
    limits = {"failures": {"retries": 1}, **ONE_WORKER}
    run = make_run("unforked", **FAULTY, **SAVES, **limits, args={"step_s": 0.2})
    start(run).wait_for_event("checkpoint")
    (started,) = [event for event in run.events if event["kind"] == "group_started"]
    (server,) = children(run.driver_pid())
    for pid in (server, started["ranks"][0]["pid"]):
        os.kill(pid, signal.SIGKILL)
    output = run.end(0)
    assert run.result.restarts == 1, output
    assert "the fork server does not answer, and is started again" in run.attempt.driver_log.read_text()
    assert same_weights(run.weights(), of_one_process(run))


def test_a_ray_cluster_is_refused(make_run, start):
    run = make_run("refused", **FAULTY)
    output = start(run, RAY_ADDRESS="127.0.0.1:1").end(3)
    assert "Unset RAY_ADDRESS, or omit --no-ray." in output and not run.run_dir.attempts()
    assert not Path(run.folder / "runs" / "refused").exists()


ENDS = """
import os, torch.distributed as dist
def train(config): os._exit(3) if dist.get_rank() else dist.barrier()
"""


def test_a_rank_that_ends_itself_was_not_killed(make_run, start, tmp_path):
    code = tmp_path / "code"
    code.mkdir()
    (code / "ends.py").write_text(ENDS)
    run = make_run("ends", function="ends:train", code=str(code), failures={"retries": 0})
    assert "ended itself with exit code 3: the code, or a library, called os._exit" in start(run).end(1)
    failure = run.attempt.restart(0).failure.read()
    assert (failure.rank, failure.error, failure.exit_code, failure.signal) == (1, "exit", 3, None)
    assert failure.entry == "exited"
