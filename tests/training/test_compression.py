"""Gradients exchanged with fewer bytes: the same result within the format's precision, and counted bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from clustertrain import Task
from clustertrain.training import compression
from clustertrain.training.settings import TrainSettings
from training.tasks import Classify, run_task, same

WIDTH = 64
EXACT_BYTES = 4 * (WIDTH * WIDTH + WIDTH + WIDTH + 1)  # of float32
SETTINGS = TrainSettings(steps=6, batch_size=4, log_every=1, save_every_steps=1)


class Wide(Task):
    """Regression with one matrix that is large enough for powersgd."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))

    def train_data(self, data):
        x = torch.randn(48, WIDTH, generator=torch.Generator().manual_seed(2))
        return TensorDataset(x, x.sum(1, keepdim=True))

    def loss(self, model, batch):
        return functional.mse_loss(model(batch[0]), batch[1])

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def run(rank_info, settings, state=None):
    """In a rank's process: powersgd starts after two steps."""
    exact_steps, compression.EXACT_STEPS = compression.EXACT_STEPS, 2
    try:
        return run_task(rank_info, Wide(), settings, state)
    finally:
        compression.EXACT_STEPS = exact_steps


def bytes_of(outcome):
    return [record["gradient_bytes"] for record in outcome.logs if record["kind"] == "train"]


def notes_of(outcome):
    """Without the first one, which shows the learning rate."""
    return [record["text"] for record in outcome.logs if record["kind"] == "note"][1:]


@pytest.mark.parametrize(("name", "tolerance"), [("fp16", 2e-3), ("bf16", 2e-2)])
def test_half_of_the_bytes_and_nearly_the_same_weights(ranks, name, tolerance):
    exact = ranks(2).results(run, SETTINGS)[0]
    outcome = ranks(2).results(run, replace(SETTINGS, gradient_compression=name))[0]
    assert bytes_of(outcome) == [EXACT_BYTES // 2] * 6
    assert notes_of(outcome) == [
        f"gradients: {EXACT_BYTES // 2:,} bytes per step and rank instead of {EXACT_BYTES:,} ({name})"
    ]
    assert not any("gradient_bytes" in record for record in exact.logs), "nothing is compressed by default"
    differences = [(outcome.weights()[key] - tensor).abs().max() for key, tensor in exact.weights().items()]
    assert 0 < max(differences) < tolerance


def test_powersgd_exchanges_two_thin_matrices_after_the_exact_steps(ranks):
    outcomes = ranks(2).results(run, replace(SETTINGS, gradient_compression="powersgd"))
    thin = 4 * (2 * compression.MATRIX_RANK * WIDTH + WIDTH + WIDTH + 1)  # vectors are exchanged as they are
    assert bytes_of(outcomes[0]) == [EXACT_BYTES] * 2 + [thin] * 4
    assert notes_of(outcomes[0]) == [
        f"gradients: {EXACT_BYTES:,} bytes per step and rank; powersgd compresses them after 2 steps",
        f"gradients: {thin:,} bytes per step and rank instead of {EXACT_BYTES:,} (powersgd)",
    ]
    (errors,) = outcomes[0].state(6)["compression"]["errors"]
    assert errors.shape == (2, EXACT_BYTES // 4)
    assert not torch.equal(*errors), "each rank has its own"
    assert same(outcomes[0].weights(), outcomes[1].weights())


@pytest.mark.parametrize("step", [1, 4])
def test_powersgd_resumes_bit_identically(ranks, step):
    """Before the first compressed step, and between two of them."""
    settings = replace(SETTINGS, gradient_compression="powersgd")
    whole = ranks(3).results(run, settings)
    resumed = ranks(3).results(run, settings, whole[0].saves[step])
    assert same(resumed[0].state(6), whole[0].state(6))


def test_powersgd_starts_anew_with_another_number_of_ranks(ranks):
    settings = replace(SETTINGS, gradient_compression="powersgd")
    first = ranks(2).results(run, settings)[0]
    (text, *_) = notes_of(ranks(3).results(run, settings, first.saves[4])[0])
    assert text == "powersgd starts with new approximations: the checkpoint's are of other ranks or buckets"


def test_a_checkpoint_without_compression_continues_with_it(ranks):
    first = ranks(2).results(run, SETTINGS)[0]
    settings = replace(SETTINGS, gradient_compression="powersgd")
    resumed = ranks(2).results(run, settings, first.saves[3])[0]
    assert bytes_of(resumed)[:2] == [EXACT_BYTES] * 2, "its own exact steps come first"
    assert ranks(2).results(run, SETTINGS, resumed.saves[5])[0].result.step == 6


def test_one_rank_exchanges_nothing(ranks):
    outcome = ranks(1).results(run_task, Classify(), replace(SETTINGS, gradient_compression="fp16"))[0]
    assert not any("gradient_bytes" in record for record in outcome.logs) and not notes_of(outcome)
