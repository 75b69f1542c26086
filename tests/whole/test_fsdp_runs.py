"""A run with train.strategy: fsdp through the real program: killed with two workers, continued with three."""

import importlib

import pytest
import torch
import yaml
from safetensors.torch import load_file

from clustertrain.checkpoints.export import export
from clustertrain.training.ranks.distributed import RankInfo
from clustertrain.training.settings import TrainSettings
from training.tasks import run_task
from whole_run import CODE


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
