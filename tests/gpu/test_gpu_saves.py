"""Saves from the GPU: what a save in the background writes, and the memory of its copy."""

import pytest
import torch

from clustertrain.checkpoints.manifest import CheckpointName, Committed
from clustertrain.checkpoints.save import Saver, copy_to_host
from clustertrain.training.ranks.host import SaveProgress
from gpu.suite import DEVICE, IS_GPU, needs_a_gpu, needs_cuda, synchronize
from training.tasks import same

pytestmark = [pytest.mark.gpu, needs_a_gpu]
MIB = 2**20
STATE_BYTES = (512 if IS_GPU else 16) * MIB


class FileWriter:
    """Writes each checkpoint as files of a folder, in place of the storage of a run."""

    def __init__(self, folder):
        self.folder = folder

    def commit(self, files, progress):
        folder = self.folder / str(progress.step)
        folder.mkdir()
        for name, write in files.items():
            with (folder / name).open("wb") as file:
                write(file)
        size_bytes = sum(path.stat().st_size for path in folder.iterdir())
        return Committed(CheckpointName(progress.step, 1, 0), size_bytes)


def saver(folder, *, background):
    folder.mkdir()
    saved, failed = [], []
    made = Saver(
        FileWriter(folder),
        background=background,
        on_saved=lambda **fields: saved.append(fields),
        on_failed=failed.append,
    )
    return made, saved, failed


def progress_at(step):
    return SaveProgress(step, epoch=0, samples_seen=step, world_size=1, metrics={}, reason="steps")


def state(step=0):
    generator = torch.Generator(device=DEVICE).manual_seed(7)
    count = STATE_BYTES // 4 // 8
    tensors = {
        f"block{i}.weight": torch.randn(count, generator=generator, device=DEVICE) + step for i in range(8)
    }
    return {"model": tensors, "position": {"step": step}}


def test_a_save_in_the_background_writes_what_a_blocking_one_writes(tmp_path):
    """The live tensors change while the background save still writes."""
    live = state()
    loaded = []
    for background in (False, True):
        made, saved, failed = saver(tmp_path / str(background), background=background)
        made.reserve(live)
        made.save(live, progress_at(1))
        if background:
            for tensor in live["model"].values():
                tensor.mul_(-1)
            synchronize()
        made.finish()
        assert (len(saved), failed) == (1, [])
        loaded.append(torch.load(tmp_path / str(background) / "1" / "model.pt", weights_only=True))
    assert same(*loaded)


@needs_cuda
def test_the_copy_on_the_host_is_pinned_and_no_larger_than_the_state():
    live = state()
    before = torch.cuda.host_memory_stats()["allocated_bytes.current"]
    copy = copy_to_host(live)
    used = torch.cuda.host_memory_stats()["allocated_bytes.current"] - before
    assert all(tensor.is_pinned() for tensor in copy["model"].values())
    assert used <= 1.05 * STATE_BYTES, (
        f"{used / MIB:.0f} MiB of pinned memory for {STATE_BYTES / MIB:.0f} MiB"
    )
