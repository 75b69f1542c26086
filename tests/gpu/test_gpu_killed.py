"""A rank that SIGKILL ends in mid-epoch, and the next process that goes on from its last save, or from a
copy of its last step in memory."""

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
from types import SimpleNamespace
import torch
from gpu.suite import RANK
from clustertrain.training.loop import train
from clustertrain.training.settings import SaveEvery, TrainSettings
from training.tasks import Classify, MemoryRun

folder, slow, copies = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3] == "copy"
saved = sorted(folder.glob("*.pt"))
plan = SimpleNamespace(ref=SimpleNamespace(attempt=1), restart=0, checkpoint=None)
if copies:
    from clustertrain.node import variables
    from clustertrain.checkpoints.save import load
    from clustertrain.worker.memory_shelf import memory_saver, memory_shelf, names_on_node
    from clustertrain.worker.place import ONLY_RANK

    kept = folder / "kept"
    kept.mkdir(mode=0o700, exist_ok=True)
    os.environ[variables.MEMORY_DIR] = str(kept)
    if not saved and (names := names_on_node(1, [0], 1)):
        plan.checkpoint, plan.restart = str(max(names)), 1
torch.use_deterministic_algorithms(True)

class Slow(Classify):
    def on_step(self, step, metrics):
        import time
        time.sleep(slow)

class FileRun(MemoryRun):
    saver = None

    def restore(self):
        return load(kept / "1" / plan.checkpoint) if plan.checkpoint else super().restore()

    def is_writing(self):
        return self.saver is not None and self.saver.wait(0) is not None

    def memory_lacks(self, state):
        if copies:
            self.saver = memory_saver(memory_shelf(1), plan, ONLY_RANK, None, print)
        return "" if copies else "a shelf"

    def save_in_memory(self, state, progress):
        self.saver.save(state, progress)

    def save(self, state, progress):
        super().save(state, progress)
        new = folder / "new"
        new.write_bytes(self.saves.pop(progress.step))
        new.rename(folder / f"{progress.step:04}.pt")

run = FileRun(0, saved[-1].read_bytes() if saved else None)
settings = TrainSettings(
    epochs=2, batch_size=4, seed=3, loader_workers=0, save_every=SaveEvery(steps=2),
    memory_every=1 if copies else 0,
)
train(Slow(), settings, RANK, run, {})
if torch.cuda.is_available() and RANK.device.type == "cuda":
    (folder / "memory").write_text(str(torch.cuda.max_memory_allocated()))
"""


def start(folder: Path, source: str, slow_s: float = 0.0) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), str(slow_s), source], env=environment
    )


def trained(folder: Path, source: str) -> Path:
    assert start(folder, source).wait(PATIENCE_S) == 0
    return sorted(folder.glob("*.pt"))[-1]


@pytest.mark.parametrize("source", ["save", "copy"])
def test_a_killed_process_is_continued_bit_by_bit(tmp_path, row, source):
    if source == "copy":
        pytest.importorskip("pydantic", reason="the kit is not installed: copies in memory need it")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    expected = trained(whole, source)
    process = start(killed, source, slow_s=0.5)
    ends = time.monotonic() + PATIENCE_S
    while not (killed / "0006.pt").exists():
        assert process.poll() is None and time.monotonic() < ends
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    assert process.wait(30) == -signal.SIGKILL
    left = sorted(killed.glob("*.pt"))[-1].name
    assert left < expected.name
    if source == "copy":
        for save in killed.glob("*.pt"):
            save.unlink()
    got = trained(killed, source)
    assert got.name == expected.name
    assert same(*(torch.load(path, weights_only=True) for path in (got, expected)))
    if (whole / "memory").exists():
        used = [int((folder / "memory").read_text()) for folder in (whole, killed)]
        row(f"peak GPU memory, whole and resumed from a {source}", "bytes", whole=used[0], resumed=used[1])
        assert used[1] <= 1.1 * used[0], "the restored state was freed"
