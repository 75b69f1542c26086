"""What a rank keeps of its last step in a file, and when the rest of its state can be saved."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from clustertrain.training.last_step import LastStep, parts_in, with_own_part
from clustertrain.training.model.recomputing import recomputing
from clustertrain.training.ranks.rng import pack_rng
from clustertrain.training.step.running_loss import Meter
from training.ranks import ALONE

CPU = torch.device("cpu")
ROOM_BYTES = 1 << 30


def last_step(model, most_losses=8):
    meter = Meter(ALONE, None)
    return LastStep(model, meter, ALONE, most_losses, lambda: (None, {"model": model.state_dict()})), meter


def marks_in(file):
    return {*parts_in(file)}


def read_own_part(file, mark, flushed_step=0):
    own = with_own_part({"model": {}, "mark": mark, "flushed_step": flushed_step}, parts_in(file)[mark], 2)
    assert torch.equal(own["rng_of_ranks"][0], own["rng_of_ranks"][1])
    return SimpleNamespace(rng=own["rng_of_ranks"][0], buffers=own["model"], losses=own["losses"])


def do_step(model, kept, meter, step):
    model(torch.randn(4, 3))
    for _ in range(2):
        meter.add(step, torch.tensor(step / 3), 4)
    kept.changes()
    kept.keep_own_part(2 * step)
    kept.completed(2 * step)


def test_the_file_has_the_own_parts_of_the_last_two_steps(tmp_path):
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5))
    kept, meter = last_step(model)
    kept.open(file := tmp_path / "own", ROOM_BYTES)
    assert marks_in(file) == set()
    found = {}
    for step in range(1, 30):
        do_step(model, kept, meter, step)
        if step % 3 == 0:
            meter.flush()
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        found[2 * step] = (
            pack_rng(CPU),
            buffers,
            [(s, s / 3) for s in range((step - 1) // 3 * 3 + 1, step + 1)],
        )
        assert marks_in(file) == {2 * step, 2 * step - 2} - {0}
        for mark in marks_in(file):
            rng, buffers, losses = found[mark]
            part = read_own_part(file, mark)
            assert torch.equal(part.rng, rng)
            assert part.buffers.keys() == buffers.keys()
            assert all(torch.equal(part.buffers[name], buffer) for name, buffer in buffers.items())
            assert list(part.losses[::2]) == [(s, torch.tensor(loss).item(), 4, 4) for s, loss in losses]


def test_the_state_counts_only_while_nothing_has_changed_it(tmp_path):
    model = nn.BatchNorm1d(3)
    kept, meter = last_step(model)
    assert kept.state() is None
    kept.open(tmp_path / "own", ROOM_BYTES)
    do_step(model, kept, meter, 1)
    mark, _, state = kept.state()
    assert (mark, state["mark"], state["model"].keys()) == (2, 2, {"weight", "bias"})
    assert state["model"]._metadata == model.state_dict()._metadata
    model(torch.randn(4, 3))
    assert kept.is_still(2), "the forward pass has changed buffers only"
    with torch.no_grad():
        model.weight.mul_(0.5)  # as a model that normalizes its weights in the forward pass
    assert not kept.is_still(2) and kept.state() is None
    do_step(model, kept, meter, 2)
    assert kept.is_still(4) and not kept.is_still(2)
    kept.changes()
    assert not kept.is_still(4) and kept.state() is None


class Counting(nn.Linear):
    """With a state of its own."""

    def get_extra_state(self):
        return {"calls": 3}

    def set_extra_state(self, state):
        """Nothing."""


def with_buffer(buffer):
    model = nn.Linear(3, 3)
    model.register_buffer("seen", buffer)
    return model


@pytest.mark.parametrize(
    "model",
    [
        Counting(3, 3),
        with_buffer(torch.zeros(1 << 20)),  # 4 MiB, and more
        with_buffer(torch.zeros(3, 3).to_sparse()),
    ],
)
def test_a_model_that_cannot_be_kept_exactly_or_cheaply_is_trained_as_before(tmp_path, model):
    kept, meter = last_step(model)
    kept.open(tmp_path / "own", ROOM_BYTES)
    do_step(model, kept, meter, 1)
    assert kept.state() is None and not (tmp_path / "own").exists()


def test_a_model_with_activation_checkpointing_is_kept(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.BatchNorm1d(3)))
    recomputing(model, model[1], "blocks")
    kept, meter = last_step(model)
    kept.open(file := tmp_path / "own", ROOM_BYTES)
    do_step(model, kept, meter, 1)
    buffers = {name: buffer for name, buffer in model.state_dict().items() if name.startswith("1.0.running")}
    found = read_own_part(file, 2).buffers
    assert len(buffers) == 2 and all(torch.equal(found[name], buffers[name]) for name in buffers)


def test_a_buffer_that_the_model_replaces_is_copied_and_one_of_another_shape_ends_it(tmp_path):
    model = with_buffer(torch.zeros(2))
    kept, meter = last_step(model)
    kept.open(file := tmp_path / "own", ROOM_BYTES)
    model.seen = model.seen + 1
    do_step(model, kept, meter, 1)
    assert read_own_part(file, 2).buffers["seen"].tolist() == [1, 1]
    assert read_own_part(file, 2).losses == [(1, torch.tensor(1 / 3).item(), 4, 4)] * 2
    assert read_own_part(file, 2, flushed_step=1).losses == []
    model.seen = torch.zeros(3)
    do_step(model, kept, meter, 2)
    assert marks_in(file) == {2}
