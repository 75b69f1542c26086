"""`clustertrain.run` in a program of the user's: in threads, beside other children, without a handler."""

import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import clustertrain
from clustertrain.errors import EXIT_STOPPED, ClusterTrainError, RunStopped
from support.leftovers import left_after, living_descendants
from support.waiting import wait_until
from support.whole_run import CODE, ONE_WORKER


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return {
        "name": "a",
        "code": CODE,
        "storage": "runs",
        "task": "faulty:Faulty",
        "train": {"epochs": 1, "batch_size": 4, "log_every": 1},
        **ONE_WORKER,
    }


@pytest.fixture
def neighbour():
    """A child of the program that has nothing to do with the run: it lives on, and nothing else is left."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    before = set(living_descendants())
    yield child
    left, lives = left_after(5, before), child.poll() is None
    child.kill()
    child.wait()
    assert (left, lives) == ({}, True)


def test_a_thread_trains_and_leaves_the_program_as_it_was(job, neighbour, capfd):
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with ThreadPoolExecutor(1) as threads:
        run = threads.submit(clustertrain.run, job).result()
    assert capfd.readouterr() == ("", "")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert run.status().state == "done"
    assert [row["step"] for row in run.metrics() if row["kind"] == "train"] == [*range(1, 15)]
    assert run.checkpoints()[-1].step == 14
    assert run.load().keys() == run.load(run.checkpoints()[-1]).keys()
    told = []
    assert clustertrain.run(job, echo=told.append) == run  # it is finished
    assert "already finished" in told[0]


def test_a_thread_is_stopped_from_another_and_continues(job, neighbour):
    job["args"], job["train"]["epochs"] = {"step_s": 0.5}, 4
    ended = []

    def train():
        try:
            clustertrain.run(job)
        except RunStopped as stopped:
            ended.append(stopped)

    thread = threading.Thread(target=train)
    thread.start()
    wait_until(lambda: clustertrain.runs() or not thread.is_alive(), 240)
    run = clustertrain.open("runs/a")
    wait_until(lambda: run.status().state == "running" or not thread.is_alive(), 240)
    run.stop()
    thread.join()
    assert [each.exit_code for each in ended] == [EXIT_STOPPED]
    assert (run.status().state, run.status().cause) == ("stopped", "user")


@pytest.mark.nightly  # in CI: test_api.py compares refusals, test_user_errors.py fails
def test_a_failed_training_raises_what_the_command_line_prints(job, neighbour):
    with pytest.raises(ClusterTrainError) as caught:
        clustertrain.run(job, overrides={"args": {"fault": "raise", "rank": 0}})
    assert str(caught.value) == clustertrain.open("runs/a").status().text
