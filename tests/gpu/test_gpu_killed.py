"""A rank that SIGKILL ends in mid-epoch, and the next process that goes on from its last save."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from gpu.suite import needs_a_gpu
from training.tasks import same

pytestmark = [pytest.mark.gpu, needs_a_gpu]
PATIENCE_S = 240.0
PROGRAM = """
import os, sys
from pathlib import Path
import torch
from gpu.suite import RANK
from clustertrain.training.loop import train
from clustertrain.training.settings import SaveEvery, TrainSettings
from training.tasks import Classify, MemoryRun

folder, slow = Path(sys.argv[1]), float(sys.argv[2])
torch.use_deterministic_algorithms(True)

class Slow(Classify):
    def on_step(self, step, metrics):
        import time
        time.sleep(slow)

class FileRun(MemoryRun):
    def save(self, state, progress):
        super().save(state, progress)
        new = folder / "new"
        new.write_bytes(self.saves.pop(progress.step))
        new.rename(folder / f"{progress.step:04}.pt")

saved = sorted(folder.glob("*.pt"))
run = FileRun(0, saved[-1].read_bytes() if saved else None)
settings = TrainSettings(epochs=2, batch_size=4, seed=3, loader_workers=0, save_every=SaveEvery(steps=2))
train(Slow(), settings, RANK, run, {})
if torch.cuda.is_available() and RANK.device.type == "cuda":
    (folder / "memory").write_text(str(torch.cuda.max_memory_allocated()))
"""


def start(folder: Path, slow_s: float) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    return subprocess.Popen([sys.executable, "-c", PROGRAM, str(folder), str(slow_s)], env=environment)


def trained(folder: Path) -> Path:
    assert start(folder, 0.0).wait(PATIENCE_S) == 0
    return sorted(folder.glob("*.pt"))[-1]


def test_a_killed_process_is_continued_bit_by_bit(tmp_path, row):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    expected = trained(whole)
    process = start(killed, slow_s=0.5)
    ends = time.monotonic() + PATIENCE_S
    while not (killed / "0006.pt").exists():
        assert process.poll() is None and time.monotonic() < ends
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    assert process.wait(30) == -signal.SIGKILL
    left = sorted(killed.glob("*.pt"))[-1].name
    assert left < expected.name
    got = trained(killed)
    assert got.name == expected.name
    assert same(*(torch.load(path, weights_only=True) for path in (got, expected)))
    if (whole / "memory").exists():
        used = [int((folder / "memory").read_text()) for folder in (whole, killed)]
        row("peak GPU memory, whole and resumed", "bytes", whole=used[0], resumed=used[1])
        assert used[1] <= 1.1 * used[0], "the restored state was freed"
