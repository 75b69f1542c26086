"""The commands that ask a run, on a real cluster: each as a user gives it, all on one RayJob."""

import json
import re

import pytest

from clustertrain.checkpoints.manifest import names
from clustertrain.launchers.source_state import read_source
from support.cluster_jobs import LONG, asked
from support.whole_run import CODE, FAULTY


@pytest.mark.nightly  # in CI: slurm/test_commands_on_a_job.py, and launchers/kubernetes/test_reach.py
@pytest.mark.timeout(900)
def test_the_commands_tell_of_a_run_in_pods_and_of_a_rank_that_exec_killed(make):
    run = make("asked", **{**FAULTY, **LONG, "args": {"step_s": 0.3}}).submit()
    run.wait_for_step(2)
    assert asked(run, "ckpt save").strip() in map(str, names(run.run_dir.checkpoints))
    assert "faulty.py:" in asked(run, "stacks")
    assert asked(run, "explain").startswith(f"cause:  none yet: {run.name} is running; ")
    assert 0 < json.loads(asked(run, "status", "--json"))["ettr"] < 1
    commits = [each.commit for each in run.attempt.provenance.read().source.repositories]
    assert commits == [each.commit for each in read_source([str(CODE)]).repositories]

    say = "echo $RANK; cat /proc/$CLUSTERTRAIN_PID/comm; kill -KILL $CLUSTERTRAIN_PID; exit 7"
    said = asked(run, "exec", "--rank", "1", "--", "sh", "-c", say, code=7)
    assert re.fullmatch(r"1\nray::\S+\n", said)
    run.wait("Failed")
    proof = r"^proof: .* rank 1 \(pid \d+ on asked-\S+-worker-\S+\) died of signal 9"
    assert re.search(proof, explained := asked(run, "explain"), re.MULTILINE), explained
    asked(run, "report", "-o", "asked.html")
    assert "died of signal 9" in (run.folder / "asked.html").read_text()
