"""Gradients exchanged in half precision: nearly the same weights, and a resume that is bit-identical."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clustertrain.training.settings import SaveEvery, TrainSettings
from training.tasks import Classify, run_task, same

SETTINGS = TrainSettings(steps=6, batch_size=4, log_every=1, save_every=SaveEvery(steps=1))


@pytest.mark.parametrize(("name", "tolerance"), [("fp16", 2e-3), ("bf16", 2e-2)])
def test_nearly_the_same_weights(ranks, name, tolerance):
    exact = ranks(2).results(run_task, Classify(), SETTINGS)[0]
    outcome = ranks(2).results(run_task, Classify(), replace(SETTINGS, gradient_compression=name))[0]
    differences = [(outcome.weights()[key] - tensor).abs().max() for key, tensor in exact.weights().items()]
    assert 0 < max(differences) < tolerance


def test_a_resumed_run_is_bit_identical(ranks):
    settings = replace(SETTINGS, gradient_compression="bf16")
    whole = ranks(3).results(run_task, Classify(), settings)
    resumed = ranks(3).results(run_task, Classify(), settings, whole[0].saves[4])
    assert same(resumed[0].state(6), whole[0].state(6))


def test_one_rank_exchanges_nothing(ranks):
    exact = ranks(1).results(run_task, Classify(), SETTINGS)[0]
    outcome = ranks(1).results(run_task, Classify(), replace(SETTINGS, gradient_compression="fp16"))[0]
    assert same(outcome.weights(), exact.weights())
