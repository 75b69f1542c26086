"""A drill on a real cluster: the digits, struck on a node of their job, and stopped and started again."""

import json
from pathlib import Path

import pytest

DIGITS = Path(__file__).parents[2] / "examples" / "digits"
JOB = {
    "code": str(DIGITS),
    "task": "digits:Digits",
    "args": {"lr": 0.002},
    "data": {"digits": {"uri": str(DIGITS / "digits.tar.gz"), "extract": True}},
    "train": {"epochs": 15, "batch_size": 32, "seed": 0},
}


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_the_digits_resume_exactly_on_two_nodes(make):
    run = make("digits", **JOB)
    done = run.command("drill", str(run.job_file), "--to", "slurm", "--faults", "rank,stop", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["exact"], report
    rank, stop = report["outcomes"]
    assert rank["caused"] and "from memory" in rank["resumed"] and rank["lost_s"] > 0
    assert stop["caused"] and "from memory" not in stop["resumed"] and stop["lost_steps"] == 0
    assert report["kept"] == [] and list((run.folder / "runs").glob("digits*")) == []
