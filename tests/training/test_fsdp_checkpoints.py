"""Checkpoints of a divided model: written in parts by all ranks, never torn, read by any number of ranks."""

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import TensorDataset

from clustertrain.checkpoints import export as exporting
from clustertrain.checkpoints.export import export
from clustertrain.checkpoints.manifest import CheckpointFolder, names, read_manifest
from clustertrain.checkpoints.read import verify
from clustertrain.checkpoints.retention import Retention
from clustertrain.checkpoints.save import Saver, load
from clustertrain.checkpoints.write import Writer
from clustertrain.errors import JobError, StorageError
from clustertrain.storage import PosixStore
from clustertrain.training.loop import train
from clustertrain.training.settings import Fsdp, SaveEvery, TrainSettings
from training.tasks import Classify, Jittered, MemoryRun, run_task

SETTINGS = TrainSettings(
    steps=6,
    global_batch_size=12,
    seed=3,
    log_every=1,
    save_every=SaveEvery(steps=2),
    clip_norm=1.0,
    strategy="fsdp",
)
FULL_DISK = "No space left on device"


class Counted(nn.Module):
    """Layers, and a buffer with the number of their passes, which is not divided."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 33), nn.LayerNorm(33), nn.GELU(), nn.Linear(33, 3))
        self.register_buffer("passes", torch.zeros(2))

    def forward(self, x):
        if self.training:
            self.passes += 1
        return self.layers(x)


class Steady(Classify):
    """Nothing random, so that the number of ranks only changes rounding; AdamW, whose state is divided."""

    def model(self):
        return Counted()

    def train_data(self, data):
        samples = Jittered(self.n)
        return TensorDataset(samples.x, samples.y, torch.arange(self.n))

    def optimizer(self, model):
        return torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-3)

    def scheduler(self, optimizer, total_steps):
        return None


@dataclass
class Ended:
    losses: list[float]
    logs: list[dict]
    failed: list[str]


class FolderRun(MemoryRun):
    """A launcher with real checkpoints in a folder."""

    saves_in_background = True

    def __init__(self, rank_info, shelf, *, restart, resume=None, broken_rank=None):
        from clustertrain.checkpoints.group import PartWriter, SaveGroup
        from clustertrain.checkpoints.shards import ShardSaver

        super().__init__(rank_info.rank)
        self.folder = None if resume is None else shelf.store.local_folder(f"{shelf.key}/{resume}")
        self.failed = []
        group = SaveGroup(range(rank_info.world_size))
        writer = PartWriter(shelf, 1, restart, group)
        if rank_info.rank == 0:
            writer = Writer(
                shelf, 1, restart, "job", {"clustertrain": "0"}, Retention(9), lambda: True, others=group
            )
        self.saver = ShardSaver(
            writer, background=True, on_saved=lambda **fields: None, on_failed=self.failed.append
        )
        if rank_info.rank == broken_rank:
            self.saver._write_parts = _disk_is_full

    def restore(self):
        return None if self.folder is None else load(self.folder)

    def fill(self, tensors):
        from clustertrain.checkpoints.shards import fill

        fill(self.folder, tensors, [path.name for path in self.folder.iterdir()])

    def reserve(self, state):
        self.saver.reserve(state)

    def save(self, state, progress):
        self.saver.save(state, progress)

    def wait_for_write(self, timeout_s):
        return self.saver.wait(timeout_s)

    def finish(self):
        self.saver.finish()


def _disk_is_full(*_):
    raise OSError(28, FULL_DISK)


def run_in_folder(rank_info, folder, settings, options):
    run = FolderRun(rank_info, CheckpointFolder(PosixStore(folder.parent), folder.name), **options)
    train(Steady(48), settings, rank_info, run, {})
    return Ended([r["loss"] for r in run.logs if r["kind"] == "train"], run.logs, run.failed)


@pytest.fixture(scope="module")
def saved(ranks, tmp_path_factory):
    """A run of two ranks to step 6, and its shelf."""
    folder = tmp_path_factory.mktemp("whole") / "checkpoints"
    ended = ranks(2).results(run_in_folder, folder, SETTINGS, {"restart": 0})
    return CheckpointFolder(PosixStore(folder.parent), folder.name), ended


def _weights(shelf: CheckpointFolder, name: str, folder: Path) -> dict[str, torch.Tensor]:
    return load_file(export(shelf, name, folder / f"{name}.safetensors")[0])


def test_every_rank_writes_its_parts_and_the_manifest_lists_all_of_them(saved):
    shelf, _ = saved
    assert [str(name) for name in names(shelf)] == ["00000002-1.0", "00000004-1.0", "00000006-1.0"]
    of_two = [f"{i:05d}-of-00002.safetensors" for i in (1, 2)]
    parts = [f"{kind}.shard-{part}" for kind in ("model", "optimizer") for part in of_two]
    assert sorted(verify(shelf, "00000006-1.0").files) == sorted(["model.pt", "training.pt", *parts])
    folder = shelf.store.local_folder(f"{shelf.key}/00000006-1.0")
    whole = load(folder)
    assert whole["model"]["layers.3.weight"].is_meta and whole["model"]["layers.3.weight"].shape == (3, 33)
    assert whole["model"]["passes"].tolist() == [6.0, 6.0]
    first = load_file(folder / "model.shard-00001-of-00002.safetensors")
    assert first["model.layers.3.weight"].shape == (2, 33), "rows of the first rank"


@pytest.mark.parametrize("world_size", [2, 3])
def test_a_resumed_run_has_the_weights_of_an_uninterrupted_one(ranks, saved, tmp_path, world_size):
    shelf, ended = saved
    folder = shelf.store.local_folder(shelf.key)
    options = {"restart": world_size, "resume": "00000004-1.0"}
    resumed = ranks(world_size).results(run_in_folder, folder, SETTINGS, options)
    name = f"00000006-1.{world_size}"
    found, expected = _weights(shelf, name, tmp_path), _weights(shelf, "00000006-1.0", tmp_path)
    if world_size == 2:
        assert resumed[0].losses == ended[0].losses[4:]
        files, others = (read_manifest(shelf, n).files for n in (name, "00000006-1.0"))
        assert {f: entry for f, entry in files.items() if "shard" in f} == {
            f: entry for f, entry in others.items() if "shard" in f
        }, "to the last bit"
    assert resumed[0].losses == pytest.approx(ended[0].losses[4:], abs=1e-6)
    assert found.keys() == expected.keys()
    for key in found:
        torch.testing.assert_close(found[key], expected[key], rtol=0, atol=0 if world_size == 2 else 1e-6)


def _on_two_nodes(rank_info, *args):
    """The first half of the ranks are on one node."""
    return run_in_folder(replace(rank_info, local_rank=rank_info.rank % (rank_info.world_size // 2)), *args)


@pytest.mark.nightly  # four processes; test_fsdp.py shards within nodes of one rank
def test_hybrid_on_two_nodes_of_two_ranks_saves_each_part_once(ranks, saved, tmp_path):
    """The saves are read by as many ranks, by three without nodes, and by an export."""
    shelf, ended = saved
    settings, folder = replace(SETTINGS, fsdp=Fsdp(shard="hybrid")), tmp_path / "hybrid" / "checkpoints"
    hybrid = ranks(4).results(_on_two_nodes, folder, settings, {"restart": 0})
    assert hybrid[0].losses == pytest.approx(ended[0].losses, abs=1e-6)
    own = CheckpointFolder(PosixStore(folder.parent), folder.name)
    parts = sorted(name for name in verify(own, "00000006-1.0").files if name.startswith("model.shard-"))
    stored = [load_file(folder / "00000006-1.0" / part) for part in parts]
    assert [part["model.layers.3.weight"].shape for part in stored if part] == [(2, 33), (1, 33)]
    expected = _weights(shelf, "00000006-1.0", tmp_path)
    for world_size, run, how in ((4, _on_two_nodes, settings), (3, run_in_folder, SETTINGS)):
        options = {"restart": world_size, "resume": "00000004-1.0"}
        again = ranks(world_size).results(run, folder, how, options)
        assert again[0].losses == pytest.approx(ended[0].losses[4:], abs=1e-6)
        found = _weights(own, f"00000006-1.{world_size}", tmp_path)
        for key, weight in expected.items():
            torch.testing.assert_close(found[key], weight, rtol=0, atol=1e-6)


def test_checkpoints_fit_the_other_strategy(ranks, saved, tmp_path):
    shelf, ended = saved
    ddp = replace(SETTINGS, strategy="ddp")
    folder = shelf.store.local_folder(shelf.key)
    options = {"restart": 7, "resume": "00000004-1.0"}
    resumed = ranks(2).results(run_in_folder, folder, ddp, options)
    assert resumed[0].losses == pytest.approx(ended[0].losses[4:], abs=1e-6)
    first = ranks(2).results(run_task, Steady(48), ddp)
    rest = ranks(2).results(run_task, Steady(48), SETTINGS, first[0].saves[4])
    assert rest[0].logged("train") == pytest.approx(ended[0].losses[4:], abs=1e-6)


def test_an_export_is_divided_into_files_of_a_limited_size(saved, tmp_path, monkeypatch):
    shelf, _ = saved
    expected = _weights(shelf, "00000006-1.0", tmp_path)
    monkeypatch.setattr(exporting, "FILE_BYTES", 600)
    index, page = export(shelf, "00000006-1.0", tmp_path / "model.safetensors")
    content = json.loads(index.read_text())
    assert index.name == "model.safetensors.index.json" and page.name == "model.json"
    found = {}
    for file in sorted(set(content["weight_map"].values())):
        part = load_file(tmp_path / file)
        assert set(part) == {name for name, where in content["weight_map"].items() if where == file}
        found |= part
    assert len(set(content["weight_map"].values())) > 2
    assert found.keys() == expected.keys() and all(torch.equal(found[k], expected[k]) for k in found)
    assert content["metadata"]["total_size"] == sum(tensor.nbytes for tensor in found.values())
    with pytest.raises(Exception, match="exists already"):
        export(shelf, "00000006-1.0", tmp_path / "model.safetensors")


def test_a_missing_shard_is_named(saved, tmp_path):
    from clustertrain.checkpoints.shards import fill

    shelf, _ = saved
    copy = shutil.copytree(shelf.store.local_folder(f"{shelf.key}/00000006-1.0"), tmp_path / "copy")
    shard = copy / "optimizer.shard-00002-of-00002.safetensors"
    shard.unlink()
    with pytest.raises(StorageError, match=f"{shard.name} is missing: the manifest") as raised:
        fill(copy, {}, read_manifest(shelf, "00000006-1.0").files)
    assert "Restore the file" in str(raised.value)


def save_divided(rank_info, folder):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    weight = distribute_tensor(torch.zeros(4, 2), init_device_mesh("cpu", (2,)), [Shard(0)])
    shelf = CheckpointFolder(PosixStore(folder), f"of-{rank_info.rank}")
    writer = Writer(shelf, 1, 0, "job", {}, Retention(1), lambda: True)
    saver = Saver(writer, background=True, on_saved=lambda **fields: None, on_failed=lambda text: None)
    saver.save({"model": {"layers": [{"weight": weight}]}}, {"step": 1})


def test_a_plain_save_refuses_a_divided_tensor(ranks, tmp_path):
    for answer in ranks(2).call(save_divided, tmp_path):
        assert isinstance(answer, JobError)
        assert str(answer).startswith("state.model.layers.0.weight is a DTensor: each rank has a part")
        assert "get_model_state_dict with full_state_dict=True" in str(answer)


def test_a_rank_that_cannot_write_leaves_no_checkpoint(ranks, tmp_path):
    folder = tmp_path / "checkpoints"
    answers = ranks(2).call(run_in_folder, folder, SETTINGS, {"restart": 0, "broken_rank": 1})
    assert isinstance(answers[0], StorageError)
    assert "written by rank 1: OSError: [Errno 28]" in str(answers[0]) and FULL_DISK in str(answers[0])
    assert names(CheckpointFolder(PosixStore(tmp_path), "checkpoints")) == [] and list(folder.iterdir()) == []
