"""A run that an earlier release stopped is continued by this one."""

import shutil
import sys
from pathlib import Path

import pytest

from commands import ran

RELEASES = sorted((Path(__file__).parents[1] / "fixtures").glob("release_*"))


@pytest.mark.parametrize("release", RELEASES, ids=lambda folder: folder.name)
def test_a_run_that_a_release_stopped_continues_at_its_step(release, tmp_path):
    shutil.copytree(release, tmp_path, dirs_exist_ok=True)
    (tmp_path / "storage").rename(tmp_path / "runs")
    newest = max(path.name for path in tmp_path.glob("runs/stopped/g1/checkpoints/*"))
    program = [sys.executable, "-m", "clustertrain.cli", "run", "stopped.yaml", "--no-check"]
    done = ran([*program, "--set", "train.epochs=20"], code=0, cwd=tmp_path)
    assert f"resuming from checkpoint {newest} (step {int(newest[:8])}, " in done.stdout
    assert "state       done (finished)\nstep        1280, epoch 20\n" in done.stdout
