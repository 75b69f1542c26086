"""A drill on a real cluster: the digits, struck in the pod of a rank."""

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
@pytest.mark.timeout(1500)
def test_the_digits_resume_exactly_in_pods(make):
    run = make("digits", **JOB)
    done = run.command("drill", str(run.job_file), "--to", "kubernetes", "--faults", "rank", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["exact"], report
    (rank,) = report["outcomes"]
    assert rank["caused"] and "from memory" in rank["resumed"] and rank["lost_s"] > 0
