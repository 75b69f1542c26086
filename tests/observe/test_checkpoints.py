"""`ckpt ls` and `ckpt verify` of a run that removes checkpoints while they are read."""

import shutil
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from clustertrain.checkpoints import read
from clustertrain.checkpoints.manifest import read_manifest
from clustertrain.cli.main import main
from clustertrain.observe import checkpoints
from clustertrain.run_files.folder.run_dir import RunDir

SAMPLE = Path(__file__).parents[1] / "fixtures" / "sample_runs" / "storage"


@pytest.mark.slow
def test_the_files_of_a_script_on_s3_have_their_size_and_time(moto_s3):
    run = RunDir.newest(moto_s3.location("runs"), "digits")
    run.store.write_atomic(run.job_key, b"name: digits\nscript: train.py\n")
    for name in ("epoch_1/model.pt", "last.pt"):
        run.store.write_atomic(f"{run.checkpoints.key}/{name}", bytes(len(name)))
    files, _ = checkpoints.checkpoints_of(run)
    assert {each.name: each.size_bytes for each in files} == {"epoch_1/model.pt": 16, "last.pt": 7}
    assert all(abs(each.written_at - time.time()) < 600 for each in files)


@pytest.mark.parametrize("command", ["ls", "verify"])
def test_a_checkpoint_that_the_run_removes_meanwhile_is_not_damaged(tmp_path, monkeypatch, command):
    run = shutil.copytree(SAMPLE / "finished", tmp_path / "finished")
    (only,) = (run / "g1" / "checkpoints").iterdir()

    def removed_first(shelf, name):
        shutil.rmtree(only, ignore_errors=True)
        return read_manifest(shelf, name)

    monkeypatch.setattr(checkpoints, "read_manifest", removed_first)
    monkeypatch.setattr(read, "read_manifest", removed_first)
    done = CliRunner().invoke(main, ["ckpt", command, str(run)])
    assert (done.exit_code, "damaged" in done.output) == (0, False), done.output
