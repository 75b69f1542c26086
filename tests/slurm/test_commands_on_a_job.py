"""The commands that ask a run, on a real cluster: each as a user gives it, all on one run of two nodes."""

import json
import re

import pytest

from clustertrain.checkpoints.manifest import names
from support.cluster_jobs import LONG, asked
from support.whole_run import FAULTY


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_the_commands_tell_of_a_run_on_two_nodes_and_of_a_rank_that_exec_killed(make):
    run = make("asked", **{**FAULTY, **LONG, "args": {"step_s": 0.2}}).submit()
    run.wait_for_step(2)
    assert asked(run, "ckpt save").strip() in map(str, names(run.run_dir.checkpoints))
    assert "faulty.py:" in asked(run, "stacks")
    assert asked(run, "explain").startswith(f"cause:  none yet: {run.name} is running; ")
    status = json.loads(asked(run, "status", "--json"))
    assert 0 < status["ettr"] < 1 and status["device_hours"] > 0

    say = "echo $RANK on $(hostname); ps -o comm= -p $CLUSTERTRAIN_PID; kill -KILL $CLUSTERTRAIN_PID; exit 7"
    said = asked(run, "exec", "--rank", "1", "--", "sh", "-c", say, code=7)
    assert re.fullmatch(r"1 on node\d\nray::\S+\n", said)
    run.wait("FAILED")
    proof = r"^proof: .* rank 1 \(pid \d+ on node\d\) died of signal 9"
    assert re.search(proof, explained := asked(run, "explain"), re.MULTILINE), explained
    asked(run, "report", "-o", "asked.html")
    assert "died of signal 9" in (run.folder / "asked.html").read_text()
