"""The commands that ask a run, on a real cluster: each as a user gives it, all on one RayJob."""

import json
import re

import pytest

from clustertrain.checkpoints.manifest import names
from clustertrain.launchers.source_state import read_source
from kubernetes.rayjob_runs import FAULTY
from whole_run import CODE

pytestmark = [pytest.mark.timeout(900), pytest.mark.nightly]  # in CI: launchers/kubernetes/test_reach.py

LONG = {"epochs": 400, "batch_size": 4, "log_every": 1}


def test_a_run_is_asked_for_all_it_knows_and_then_why_it_failed(make):
    """The kill is a command of `exec` in the pod of rank 1."""
    job = {"args": {"step_s": 0.3}, "train": LONG, "failures": {"retries": 0}}
    run = make("asked", **{**FAULTY, **job}).submit()
    run.wait_for_step(2)

    def asked(*command, code=0):
        done = run.command(command[0], str(run.job_file), *command[1:])
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    saved = asked("checkpoint", "--now").strip()
    assert saved in map(str, names(run.run_dir.checkpoints))
    assert asked("profile", "--now", "--steps", "2").startswith("the profile of steps ")
    assert len(list(run.attempt.path.glob("restarts/0/profile/rank-[01].pt.trace.json.gz"))) == 2
    assert "faulty.py:" in asked("stacks")
    assert asked("explain").startswith("cause:  the run is running; ")
    status = json.loads(asked("status", "--json"))
    assert 0 < status["ettr"] < 1 and status["device_hours"] > 0
    commits = [each.commit for each in run.attempt.provenance.read().source.repositories]
    assert commits == [each.commit for each in read_source([str(CODE)]).repositories]

    say = "echo $RANK on $(hostname); cat /proc/$CLUSTERTRAIN_PID/comm; kill -KILL $CLUSTERTRAIN_PID; exit 7"
    said = asked("exec", "--rank", "1", "--", "sh", "-c", say, code=7)
    assert re.fullmatch(r"1 on \S+\nray::\S+\n", said)
    run.wait("Failed")
    assert asked("watch").startswith("asked  failed\n")
    explained = asked("explain")
    assert re.search(r"^proof: .* rank 1 \(pid \d+ on \S+\) died of signal 9", explained, re.M), explained
    asked("report", "-o", "asked.html")
    assert "died of signal 9" in (run.folder / "asked.html").read_text()
