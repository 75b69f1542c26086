"""`clustertrain up` keeps a Ray ready, and the next run takes it over."""

import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from clustertrain.supervise.guardian import descendants
from clustertrain.waiting import wait_until
from commands import ran
from leftovers import left_after, living_descendants
from whole_run import FAULTY, ONE_WORKER, of_one_process, same_weights

CLI = [sys.executable, "-m", "clustertrain.cli"]
READY_WITHIN_S = 300.0
SLOW = {"fault": "", "rank": 0, "at_call": 0, "step_s": 0.5}


class Up:
    """A keeper in a folder of the test's own."""

    def __init__(self) -> None:
        self.before = set(living_descendants())

    def up(self, job_file: Path, *options: str, code: int = 0) -> str:
        done = ran([*CLI, "up", str(job_file), *options], code=code, timeout=READY_WITHIN_S)
        return done.stdout + done.stderr

    def down(self) -> str:
        return ran([*CLI, "down"], code=0, timeout=READY_WITHIN_S).stdout

    @property
    def pid(self) -> int:
        (found,) = (pid for pid, command in living_descendants().items() if "warm.keeper" in command)
        return found

    def started(self) -> set[int]:
        return set(descendants(self.pid))

    def left(self, within_s: float) -> dict[int, str]:
        return left_after(within_s, self.before)


@pytest.fixture
def keeper(monkeypatch):
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="up") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        kept = Up()
        yield kept
        kept.down()
        assert kept.left(10) == {}


def test_runs_take_it_one_at_a_time_and_train_as_always(make_run, keeper):
    first = make_run("first", **FAULTY, **ONE_WORKER)
    assert "Ready after" in keeper.up(first.job_file, "--set", "train.epochs=1")
    assert "up already" in (said := keeper.up(first.job_file)) and "another value" not in said
    other_job = make_run("other-job", **FAULTY, resources={"workers": 2, "cpus_per_worker": 0.5}).job_file
    assert "It was started with another value of: resources.workers." in keeper.up(other_job)
    spare, keeper_pid = keeper.started(), keeper.pid
    first.start("--set", "args.step_s=0.3", checked=True).wait_for_step(1)
    assert first.driver_pid() in spare, "the driver ran before the run"
    short = {**FAULTY, "train": {"epochs": 1, "batch_size": 4}}
    second = make_run("second", **short, **ONE_WORKER)
    output = second.start().end(0, all_gone=False)
    assert "is in use by another run. This run starts its own." in output, output
    assert second.driver_pid() not in spare
    other = make_run("other", **short, **ONE_WORKER).start(DATA_ROOT="/elsewhere")
    output = other.end(0, all_gone=False)
    assert "was started with another value of: DATA_ROOT. This run starts its own." in output, output
    assert "note:" not in first.end(0, all_gone=False)
    assert keeper.pid == keeper_pid, "it keeps another one for the next run"
    assert same_weights(first.weights(), of_one_process(first))


@pytest.mark.parametrize("killed", ["run", "keeper", "driver"])
def test_whatever_is_killed_nothing_stays(make_run, keeper, killed):
    run = make_run("killed", **FAULTY, args={"step_s": 0.3}, **ONE_WORKER)
    keeper.up(run.job_file)
    spare, keeper_pid = keeper.started(), keeper.pid
    run.start().wait_for_step(1)
    driver = run.driver_pid()
    assert driver in spare
    os.kill({"run": run.process.pid, "keeper": keeper_pid, "driver": driver}[killed], signal.SIGKILL)
    if killed == "run":
        assert wait_until(lambda: driver not in living_descendants(), 10, 0.05)
        run.process.communicate()
    else:
        output = run.end(0, all_gone=False)
        assert ("restarting" in output) == (killed == "driver"), output
        assert same_weights(run.weights(), of_one_process(run))
    keeper.down()
    assert keeper.left(10) == {}


def test_a_driver_that_cannot_start_is_shown(make_run, keeper):
    job_file = make_run("codeless", **FAULTY, **ONE_WORKER).job_file
    output = keeper.up(job_file, "--set", "code=not-here", code=3)
    assert "The driver for the next run has ended:\n  | " in output
    assert f"No such file or directory: '{job_file.parent}/not-here'" in output


def test_without_a_run_it_ends_and_a_killed_one_leaves_nothing(make_run, keeper):
    job_file = make_run("idle", **FAULTY, **ONE_WORKER).job_file
    keeper.up(job_file, "--idle", "1s")
    assert keeper.left(30) == {}
    keeper.up(job_file)
    os.kill(keeper.pid, signal.SIGKILL)
    assert keeper.left(10) == {}
    assert keeper.down() == "Nothing is up.\n"
