"""`clustertrain submit --to local`: the run goes on without the command that started it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from clustertrain.node.waiting import wait_until
from clustertrain.run_files.folder.run_dir import RunDir
from support.commands import ran
from support.whole_run import ONE_WORKER, Run

HELD = {"task": "faulty:Faulty", "train": {"epochs": 900, "batch_size": 4, "log_every": 1}, **ONE_WORKER}


def call(run: Run, *arguments: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "clustertrain.cli", *arguments]
    return ran(command, code=code, timeout=300, cwd=run.folder).stdout


def wait_for_its_first_step(run: Run) -> None:
    run.process = subprocess.Popen(
        [sys.executable, "-m", "clustertrain.cli", "logs", str(run.job_file), "--follow"],
        stdout=subprocess.PIPE,
        text=True,
    )
    run.wait_for_step(1)


def test_a_submitted_run_is_watched_stopped_and_continued(make_run):
    run = make_run("behind", args={"step_s": 0.2}, **HELD)
    run.before, run.live, run.attempts_before = set(run.left(0)), None, 0
    printed = call(run, "submit", "--to", "local", "--no-check", str(run.job_file))
    assert printed.startswith("submitted behind as local job ")
    job_id = printed.split()[5].rstrip(":")
    assert re.search(rf"^stop: +\S*clustertrain stop {run.job_file}$", printed, re.MULTILINE)
    run.job_file.write_text(run.job_file.read_text().replace("0.2", "0.3"))  # the run has its own copy
    wait_for_its_first_step(run)
    status = call(run, "status", str(run.job_file))
    assert f"local {job_id}: RUNNING" in status
    assert json.loads(call(run, "status", "--json", str(run.job_file)))["state"] == "running"
    assert f"local job {job_id}" in call(run, "ls", str(run.job_file))
    again = ran([sys.executable, "-m", "clustertrain.cli", "submit", "--to", "local", str(run.job_file)])
    assert (again.returncode, "behind is running already: attempt 1" in again.stderr) == (3, True)
    assert "sent a stop request to local job" in call(run, "stop", str(run.job_file))
    assert "stopping as requested" in run.end(0)
    assert (run.result.state, run.result.cause) == ("stopped", "user")
    assert "stopped (user)" in call(run, "status", str(run.job_file))
    output = printed.rpartition("output: ")[2].strip()
    assert f"attempt 1 in {run.attempt.uri}" in Path(output).read_text()

    steps = str(run.result.step + 2)
    change = ["--set", f"train={{steps: {steps}, batch_size: 4}}", "--accept-changes", "--no-check"]
    followed = call(run, "submit", "--to", "local", "--wait", *change, str(run.job_file))
    assert "done" in followed
    assert run.result.step == int(steps)
    assert run.left(5) == {}


POINT = """\
import time
time.sleep(3)
"""


@pytest.mark.nightly  # in CI: slurm/test_sweeps.py, and a run in the background above
def test_the_points_of_a_sweep_train_in_turn_behind_the_command(make_run):
    run = make_run("points", script="train.py", args=["0"], code=".", **ONE_WORKER)
    (run.folder / "train.py").write_text(POINT)
    run.before = set(run.left(0))
    grid = "--no-check", "--grid", "failures.retries=0,1,2"
    printed = call(run, "submit", "--to", "local", *grid, str(run.job_file))
    waits = "PENDING (a run before it in the sweep has not ended)"
    assert re.findall(r"^submitted (\S+) as local job \S+: (.+)", printed, re.MULTILINE) == [
        ("points-0", "RUNNING"),
        ("points-1", waits),
        ("points-2", waits),
    ]
    second = str(run.folder / "runs" / "points-1")
    assert "was cancelled in the queue" in call(run, "stop", second)
    assert "cancelled (cancelled)" in call(run, "status", second)
    points = [RunDir.newest(str(run.folder / "runs"), f"points-{n}") for n in (0, 2)]

    def results():
        return [attempt.result.read() for each in points if (attempt := each.newest_attempt()) is not None]

    assert wait_until(lambda: [each and each.state for each in results()] == ["done", "done"], 240, 0.5)
    first, last = (each.newest_attempt() for each in points)
    assert first.result.read().ended_at <= last.claim.read().time
    assert run.left(20) == {}
