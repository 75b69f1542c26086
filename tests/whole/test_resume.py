"""What was lost is done again, to the last bit: real kills of real processes, in mid-epoch.

54 samples on 2 workers of 4 are 7 steps an epoch, on 3 workers 5; with a checkpoint every 4 steps every
resume below is from the middle of an epoch.
"""

import importlib
import json
import signal

import pytest
import torch
import yaml
from safetensors.torch import load_file

from clustertrain.checkpoints.export import export
from clustertrain.checkpoints.read import newest_verified
from clustertrain.training.ranks.distributed import RankInfo
from clustertrain.training.settings import TrainSettings
from support.leftovers import kill_together
from support.whole_run import CODE, FAULTY, same_weights
from training.tasks import run_task


def sections(workers, **args):
    return {
        **FAULTY,
        "args": args,
        "checkpoint": {"every": {"steps": 4}, "keep_last": 2},
        "resources": {"workers": workers, "cpus_per_worker": 0.5},
    }


def steps_of(run):
    from clustertrain.run_files.streams.history import curve

    return [r["step"] for r in curve(run.run_dir) if r["kind"] == "train"]


# In CI tests/training/test_loop_resume.py resumes 3 ranks, and test_corrected.py a run that Ctrl-C stopped.
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("start", "workers", "steps"), [("with Ray", 3, 15), ("without Ray", 2, 21)], indirect=["start"]
)
def test_ctrl_c_saves_and_the_next_start_continues(make_run, start, uninterrupted, workers, steps):
    run = make_run("stopped", **sections(workers, step_s=0.2))
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
    assert steps_of(run) == list(range(1, steps + 1))
    assert same_weights(run.weights(), uninterrupted(workers))


# In CI test_endings.py kills these processes of a run with Ray, and test_faults.py resumes after kills.
@pytest.mark.parametrize(
    "start", [pytest.param("with Ray", marks=pytest.mark.nightly), "without Ray"], indirect=True
)
def test_kill_9_of_the_program_and_its_guardian_leaves_nothing_and_loses_little(
    make_run, start, uninterrupted
):
    run = make_run("vanished", **sections(2, step_s=0.2))
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


@pytest.mark.nightly  # in CI: training/test_fsdp_checkpoints.py resumes with another number of real ranks
def test_killed_with_two_workers_and_continued_with_three(make_run, tmp_path, monkeypatch):
    run = make_run(
        "divided",
        task="divided:Divided",
        args={"fault": "kill", "rank": 1, "at_call": 8, "marker": str(tmp_path / "struck")},
        train={"steps": 12, "global_batch_size": 12, "strategy": "fsdp", "log_every": 1},
        checkpoint={"every": {"steps": 4}},
        failures={"retries": 0},
    )
    output = run.start().end(1)
    assert "rank 1" in output and "SIGKILL" in output
    run.job["resources"]["workers"] = 3
    run.job_file.write_text(yaml.safe_dump(run.job))
    output = run.start("--accept-changes").end(0)
    assert "resuming from checkpoint 00000004-1.0" in output
    assert "FSDP (full, 3 ranks): " in output
    shelf = run.run_dir.checkpoints
    path, _ = export(shelf, run.result.checkpoint, tmp_path / "model.safetensors")
    monkeypatch.syspath_prepend(CODE)
    expected = run_task(
        RankInfo(0, 0, 1, torch.device("cpu")),
        importlib.import_module("divided").Divided(),
        TrainSettings(steps=12, global_batch_size=12),
    ).weights()
    found = load_file(path)
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        assert found[name].numpy() == pytest.approx(weight.numpy(), abs=1e-5), name
