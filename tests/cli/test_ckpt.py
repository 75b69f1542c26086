import json
import subprocess
import sys

import pytest
import torch
from click.testing import CliRunner

from clustertrain.checkpoints.save import Saver
from clustertrain.checkpoints.write import Retention, Writer
from clustertrain.cli.main import main
from clustertrain.run.claims import claim_attempt
from clustertrain.run.folder import RunDir


@pytest.fixture
def run(tmp_path):
    """A run with checkpoints of steps 10 and 20: a model with tied weights, and an optimizer's state."""
    run = RunDir.newest(str(tmp_path / "runs"), "digits")
    claim_attempt(run)
    writer = Writer(run.checkpoints, 1, 0, "0" * 64, {"torch": "2"}, Retention(keep_last=5), lambda: True)
    saver = Saver(writer, background=False, on_saved=lambda **fields: None, on_failed=pytest.fail)
    for step in (10, 20):
        tied = torch.full((2, 3), float(step))
        state = {
            "model": {"a.weight": tied, "b.weight": tied, "n": torch.tensor(step)},
            "optimizer": {"lr": 0.1},
        }
        progress = {"step": step, "epoch": 1, "samples_seen": step * 8, "world_size": 2}
        saver.save(state, {**progress, "metrics": {"accuracy": step / 100}, "reason": "steps"})
    return run


@pytest.fixture
def ckpt(run):
    return lambda command, *options: CliRunner().invoke(
        main, ["ckpt", command, str(run.local_path(run.key).parent), *options]
    )


def test_ls_lists_the_manifests(ckpt):
    header, first, second = ckpt("ls").output.splitlines()
    assert first.split()[:5] == ["00000010-1.0", "10", "1", "2", "steps"]
    assert second.endswith("accuracy 0.2")
    assert header.index("STEP") == first.index("10", 12)


def test_verify_reads_every_byte(ckpt, run):
    assert ckpt("verify").output.count("whole") == 2
    file = run.local_path(run.key) / "checkpoints" / "00000010-1.0" / "training.pt"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    result = ckpt("verify")
    assert result.exit_code == 4
    assert "00000010-1.0  damaged" in result.output
    assert "training.pt" in result.output
    assert "1 of the checkpoints" in result.stderr


def test_ls_shows_a_damaged_manifest(ckpt, run):
    (run.local_path(run.key) / "checkpoints" / "00000010-1.0" / "MANIFEST.json").write_text("{")
    assert "damaged" in ckpt("ls").output


def test_an_export_loads_without_clustertrain(ckpt, tmp_path):
    result = ckpt("export", "--to", str(tmp_path / "out" / "digits.safetensors"))
    assert result.exit_code == 0, result.output
    code = (
        "import sys\n"
        "from safetensors.torch import load_file\n"
        f"w = load_file({str(tmp_path / 'out' / 'digits.safetensors')!r})\n"
        "assert 'clustertrain' not in sys.modules\n"
        "print(sorted(w), w['a.weight'].equal(w['b.weight']), w['a.weight'].tolist(), w['n'].item())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['a.weight', 'b.weight', 'n'] True [[20.0, 20.0, 20.0], [20.0, 20.0, 20.0]] 20\n"
    page = json.loads((tmp_path / "out" / "digits.json").read_text())
    assert (page["step"], page["checkpoint"], page["metrics"]) == (20, "00000020-1.0", {"accuracy": 0.2})


def test_an_export_of_an_older_one_and_of_none(ckpt, tmp_path):
    to = str(tmp_path / "old.safetensors")
    assert ckpt("export", "--name", "00000010-1.0", "--to", to).exit_code == 0
    again = ckpt("export", "--to", to)
    assert (again.exit_code, "exists already" in again.stderr) == (2, True)
    absent = ckpt("export", "--name", "7", "--to", str(tmp_path / "x.safetensors"))
    assert absent.exit_code == 2
    assert "There are: 00000010-1.0, 00000020-1.0" in absent.stderr


def test_a_damaged_checkpoint_is_not_exported(ckpt, run, tmp_path):
    (run.local_path(run.key) / "checkpoints" / "00000020-1.0" / "model.pt").write_bytes(b"")
    result = ckpt("export", "--to", str(tmp_path / "x.safetensors"))
    assert result.exit_code == 4
    assert not (tmp_path / "x.safetensors").exists()
