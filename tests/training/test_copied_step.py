"""How often a rank copies its state, and what of it is read again."""

import mmap
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.serialization import set_default_mmap_options

from clustertrain.training import copied_step
from clustertrain.training.copied_step import CopiedStep, whole_state
from clustertrain.training.last_step import _mapped, parts_in
from clustertrain.training.ranks.host import SaveProgress
from clustertrain.training.ranks.rng import pack_rng
from clustertrain.training.step.running_loss import Meter
from training.ranks import ALONE

ROOM_BYTES = 1e6


class Rank:
    """A rank whose clock shows only what is given: `copy_s` for each copy, `step_s` for each step."""

    def __init__(self, path, every=None, room_bytes=ROOM_BYTES):
        self.now_s, self.copy_s, self.step_s = 0.0, 0.0, 1.0
        self.notes, self.kept, self.path, self.step, self.more = [], [], path, 0, {}
        self.model = nn.Linear(20, 20)
        meter = Meter(ALONE, None)
        self.shard = CopiedStep(self.model, meter, ALONE, 99, self.state, every=every, note=self.notes.append)
        self.shard.open(path, room_bytes)

    def state(self):
        if self.step:  # not when the file is created
            self.kept.append(self.step)
        self.now_s += self.copy_s
        rest = {"flushed_step": 0, "rates": (0.1, torch.tensor(2.0))}
        return SaveProgress(self.step, 0, 0, 1, {}, ""), {
            "model": self.model.state_dict(),
            **rest,
            **self.more,
        }

    def train(self, steps):
        for _ in range(steps):
            self.step += 1
            self.shard.changes()
            with torch.no_grad():
                self.model.weight.fill_(self.step)
            self.now_s += self.step_s
            self.shard.completed(2 * self.step)
            self.shard.completed(2 * self.step)  # after what is done between two steps


@pytest.fixture
def rank_of(tmp_path, monkeypatch):
    ranks = []
    clock = SimpleNamespace(perf_counter=lambda: ranks[-1].now_s if ranks else 0.0)
    monkeypatch.setattr(copied_step, "time", clock)

    def make(**options):
        rank = Rank(tmp_path / "own-0", **options)
        ranks.append(rank)
        return rank

    return make


def test_copies_take_one_percent_of_the_time_at_most(rank_of):
    rank = rank_of()
    rank.copy_s = 0.025
    rank.train(11)  # after the first step ten are measured
    assert rank.kept == [*range(1, 12)]
    assert rank.notes == [
        "the last step is kept in memory every 3 steps: a copy takes 25.0 ms, 0.8% of their time"
    ]
    rank.kept.clear()
    began_s = rank.now_s
    rank.train(9)
    assert rank.kept == [13, 16, 19]
    assert len(rank.kept) * rank.copy_s <= 0.01 * (rank.now_s - began_s)


def test_the_number_of_steps_follows_the_measurement(rank_of):
    rank = rank_of()
    rank.copy_s = 0.005
    rank.train(11)
    assert "every 1 steps" in rank.notes[-1]
    rank.copy_s = 0.015
    rank.train(10)
    assert "every 2 steps: a copy takes 15.0 ms, 0.8% of their time" in rank.notes[-1]
    rank.train(20)
    assert len(rank.notes) == 2, "only what has changed"


def test_the_number_in_the_job_stays_and_the_log_has_its_cost(rank_of):
    rank = rank_of(every=8)
    rank.copy_s = 0.4
    rank.train(16)
    assert not rank.notes
    rank.train(25)
    assert rank.kept == [*range(1, 42, 8)]
    assert rank.notes == [
        "the last step is kept in memory every 8 steps: a copy takes 400.0 ms, 5.0% of their time"
    ]


def test_the_time_for_which_a_copy_waits_for_a_gpu_is_of_the_steps(rank_of, monkeypatch):
    """A program that only starts the work of a GPU is fast, until it waits for it."""
    rank = rank_of(every=8)
    monkeypatch.setattr(copied_step, "pack_rng", lambda device: pack_rng(torch.device("cpu")))
    rank.shard._rank_info = replace(ALONE, device=torch.device("cuda"))
    rank.step_s, rank.copy_s, waited_until = 0.02, 0.16, [0]

    def synchronize(device):
        rank.now_s += 0.18 * (rank.step - waited_until[0])
        waited_until[0] = rank.step

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    rank.train(17)
    assert rank.notes == [
        "the last step is kept in memory every 8 steps: a copy takes 160.0 ms, 10.0% of their time"
    ]


def test_no_rank_copies_a_step_that_another_has_no_room_for(rank_of):
    rank = rank_of(every=2)
    rank.shard._parts = None
    rank.train(30)
    assert not rank.kept and len(rank.notes) == 1 and "not kept" in rank.notes[0]


def test_a_node_without_room_keeps_nothing(rank_of):
    rank = rank_of(room_bytes=1000)
    rank.train(30)
    assert not rank.kept and not rank.path.exists()
    assert rank.notes == [
        "the last step is not kept in memory: a node has no room for the state of its ranks"
    ]


def test_the_last_two_states_are_read_again(rank_of):
    rank = rank_of(every=1)
    rank.train(3)
    parts = parts_in(rank.path)
    assert parts.keys() == {4, 6}
    for mark, own in parts.items():
        state = whole_state(own, 1)
        assert state["mark"] == mark and state["model"]["weight"].unique().tolist() == [mark // 2]
        assert (state["rates"][0], state["rates"][1].item()) == (0.1, 2.0)


def test_a_state_that_grows_gets_a_file_of_its_size(rank_of):
    """As when the loss scaler has skipped the first step: Adam has no state yet."""
    rank = rank_of(every=1)
    rank.train(2)
    rank.more = {"optimizer": torch.ones(1000), "text": "…" * 9999}
    rank.train(2)
    parts = parts_in(rank.path)
    assert parts.keys() == {6, 8}
    assert whole_state(parts[8], 1)["optimizer"].sum() == 1000


def test_a_number_in_the_job_is_not_ignored_without_a_word(rank_of):
    """With RAY_ADDRESS the node has no folder for the run, and `open` is not called."""
    rank = rank_of(every=1)
    rank.shard._is_asked, rank.shard._parts = False, None
    rank.train(11)
    assert rank.notes == ["the last step is not kept in memory: a node has no folder for it in /dev/shm"]


def test_without_room_for_a_state_that_has_grown_nothing_is_kept(rank_of):
    rank = rank_of(every=1, room_bytes=100_000)
    rank.more = {"optimizer": torch.ones(100_000)}
    rank.train(30)
    assert not rank.path.exists() and "no room" in rank.notes[0]


def test_a_tensor_keeps_its_strides(rank_of):
    """A fused optimizer takes the elements of weights and state in the order of their memory."""
    rank = rank_of(every=1)
    rank.model.weight = nn.Parameter(rank.model.weight.detach().t())
    rank.path.unlink()
    rank.shard.open(rank.path, ROOM_BYTES)
    rank.train(1)
    (own,) = parts_in(rank.path).values()
    assert whole_state(own, 1)["model"]["weight"].stride() == (1, 20)


@pytest.mark.parametrize("name", ["rng", "values", "buffers"])
def test_a_changed_byte_is_found(rank_of, name):
    rank = rank_of(every=1)
    rank.train(1)
    with set_default_mmap_options(mmap.MAP_SHARED):
        own = _mapped(rank.path)["parts"][0]
    tensor = own["buffers"]["model.weight"] if name == "buffers" else own[name]
    tensor.view(torch.uint8).view(-1)[7] ^= 1
    (found,) = parts_in(rank.path).values()
    assert whole_state(found, 1) is None
