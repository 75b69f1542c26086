"""Real runs: one that fails on one rank, and one that hangs on one rank."""

import json
import os
import signal

import pytest
from click.testing import CliRunner

from clustertrain.cli.main import main
from support.whole_run import Run

pytestmark = pytest.mark.run

RAISES = """\
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if os.environ["RANK"] == "1":
    print("reading the table of faults")
    raise ValueError("the sensor is upside down")
dist.all_reduce(torch.ones(1))
"""
HANGS = """\
import time, torch, torch.distributed as dist
from clustertrain import session
def wait_for_the_disk():
    time.sleep(600)
def train(config):
    if session.current().rank == 1:
        wait_for_the_disk()
    dist.all_reduce(torch.ones(1))
"""


def told(*arguments, code=0):
    result = CliRunner().invoke(main, [*map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def test_the_rank_that_raised_is_the_cause_and_not_the_one_that_lost_it(tmp_path):
    (tmp_path / "train.py").write_text(RAISES)
    run = Run(tmp_path, "raises", script="train.py", code=str(tmp_path), failures={"retries": 0})
    output = run.start("--no-ray").end(1)
    assert "cause:" not in output  # the message has the exception already
    shown = told("explain", run.job_file)
    found = json.loads(told("explain", run.job_file, "--json"))
    assert (found["failure"], found["rank"], found["followed"]) == ("own_exception", 1, [0])
    assert "ValueError: the sensor is upside down" in found["proof"]
    assert 2 <= len(found["evidence"]) <= 10
    first = shown.splitlines()[0]
    assert first.startswith("cause:  rank 1 on ")
    assert first.endswith(" raised ValueError: the sensor is upside down at train.py:6 (your own code)")


@pytest.fixture
def hanging(tmp_path):
    (tmp_path / "loop.py").write_text(HANGS)
    run = Run(tmp_path, "hangs", function="loop:train", code=str(tmp_path))
    run.start().wait_for_event("group_started")
    yield run
    os.kill(run.process.pid, signal.SIGINT)
    run.wait_for_event("stop_requested")
    os.kill(run.process.pid, signal.SIGINT)
    run.end(130)


def test_of_a_run_that_hangs_the_outlier_comes_first(hanging):
    shown = told("stacks", hanging.job_file).splitlines()
    assert shown[0] == "rank 1"
    assert any("in wait_for_the_disk" in line for line in shown[: shown.index("rank 0")])
    assert any("in all_reduce" in line for line in shown[shown.index("rank 0") :])
    found = json.loads(told("explain", hanging.job_file, "--json"))
    assert [group["ranks"] for group in found["stacks"]] == [[1], [0]]
    assert "loop.py:4 in wait_for_the_disk" in found["cause"]
