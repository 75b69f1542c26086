"""Gradients exchanged in half precision: nearly the same weights, and a resume that is bit-identical."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from clustertrain import Task
from clustertrain.training.settings import SaveEvery, TrainSettings
from training.tasks import Classify, run_task, same

WIDTH = 64
SETTINGS = TrainSettings(steps=6, batch_size=4, log_every=1, save_every=SaveEvery(steps=1))


class Wide(Task):
    """Regression with one large matrix."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))

    def train_data(self, data):
        x = torch.randn(48, WIDTH, generator=torch.Generator().manual_seed(2))
        return TensorDataset(x, x.sum(1, keepdim=True))

    def loss(self, model, batch):
        return functional.mse_loss(model(batch[0]), batch[1])

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


@pytest.mark.parametrize(("name", "tolerance"), [("fp16", 2e-3), ("bf16", 2e-2)])
def test_nearly_the_same_weights(ranks, name, tolerance):
    exact = ranks(2).results(run_task, Wide(), SETTINGS)[0]
    outcome = ranks(2).results(run_task, Wide(), replace(SETTINGS, gradient_compression=name))[0]
    differences = [(outcome.weights()[key] - tensor).abs().max() for key, tensor in exact.weights().items()]
    assert 0 < max(differences) < tolerance


def test_a_resumed_run_is_bit_identical(ranks):
    settings = replace(SETTINGS, gradient_compression="bf16")
    whole = ranks(3).results(run_task, Wide(), settings)
    resumed = ranks(3).results(run_task, Wide(), settings, whole[0].saves[4])
    assert same(resumed[0].state(6), whole[0].state(6))


def test_one_rank_exchanges_nothing(ranks):
    exact = ranks(1).results(run_task, Classify(), SETTINGS)[0]
    outcome = ranks(1).results(run_task, Classify(), replace(SETTINGS, gradient_compression="fp16"))[0]
    assert same(outcome.weights(), exact.weights())
