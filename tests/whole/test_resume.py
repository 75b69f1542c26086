"""What was lost is done again, to the last bit: real kills of real processes, in mid-epoch.

54 samples on 2 workers of 4 are 7 steps an epoch; with a checkpoint every 4 steps every resume below is from
the middle of an epoch.
"""

import json
import signal

import pytest

from clustertrain.checkpoints.read import newest_verified
from leftovers import kill_together
from whole_run import FAULTY, same_weights

pytestmark = pytest.mark.parametrize("start", ["without Ray"], indirect=True)

SECTIONS = {**FAULTY, "args": {"step_s": 0.2}, "checkpoint": {"every": {"steps": 4}, "keep_last": 2}}


def steps_of(run):
    from clustertrain.run.streams.history import curve

    return [r["step"] for r in curve(run.run_dir) if r["kind"] == "train"]


# test_loop_resume.py of training resumes 3 ranks, and test_corrected.py a run with Ray that Ctrl-C stopped.
def test_ctrl_c_saves_and_the_next_start_continues(make_run, start, uninterrupted):
    run = make_run("stopped", **SECTIONS)
    start(run).wait_for_step(6)
    run.process.send_signal(signal.SIGINT)
    output = run.end(75)
    assert "stopped (interrupt)" in output
    assert "clustertrain run" in output
    stopped = run.result
    assert stopped.checkpoint == f"{stopped.step:08d}-1.0"
    output = start(run).end(0)
    assert f"resuming from checkpoint {stopped.checkpoint}" in output
    assert "steps to repeat" not in output
    assert steps_of(run) == list(range(1, 22))
    assert same_weights(run.weights(), uninterrupted(2))


# test_endings.py kills these processes of a run with Ray, and test_faults.py resumes after kills.
def test_kill_9_of_the_program_and_its_guardian_leaves_nothing_and_loses_little(
    make_run, start, uninterrupted
):
    run = make_run("vanished", **SECTIONS)
    start(run).wait_for_step(10)
    kill_together(run.process.pid, run.guardian_pid())
    run.process.communicate()
    assert run.left(60) == {}
    assert run.result is None
    kept = newest_verified(run.run_dir.checkpoints, lambda name, error: None, run.folder / "brought")
    assert kept.manifest.step in (4, 8, 12)
    output = start(run).end(0)
    assert f"resuming from checkpoint {kept.name}" in output
    assert "steps to repeat" in output
    assert steps_of(run) == list(range(1, 22))
    assert same_weights(run.weights(), uninterrupted(2))
    again = start(run).end(0)
    assert "is already finished" in again
    assert json.loads((run.attempt.path / "claim.json").read_text())["world_size"] == 2
