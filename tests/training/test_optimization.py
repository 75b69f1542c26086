from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from clustertrain.errors import JobError
from clustertrain.training.optimization import lr_factor
from clustertrain.training.settings import TrainSettings
from training.tasks import Plain, run_task

SETTINGS = TrainSettings(steps=6, batch_size=4, log_every=1)


class Halving(Plain):
    def scheduler(self, optimizer, total_steps):
        return torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


def lrs(outcome):
    return [record["lr"] for record in outcome.logs if record["kind"] == "train"]


def test_factors():
    assert lr_factor("none", 512, 32) == 1
    assert lr_factor("linear", 512, 32) == 16
    assert lr_factor("sqrt", 512, 32) == 4


def test_lr_follows_the_global_batch_and_the_scheduler_starts_from_it(ranks):
    settings = replace(SETTINGS, lr_scaling="linear", accumulate=2)
    outcome = ranks(2).results(run_task, Halving(), settings)[0]
    assert lrs(outcome) == [0.4, 0.4, 0.2, 0.2, 0.1, 0.1]  # 0.1 × 2 ranks × 2
    base = replace(settings, lr_scaling="sqrt", lr_base_batch_size=4)
    assert lrs(ranks(2).results(run_task, Halving(), base)[0])[0] == 0.1 * math.sqrt(16 / 4)


def test_warmup_multiplies_and_leaves_the_scheduler_alone(ranks):
    outcome = ranks(1).results(run_task, Halving(), replace(SETTINGS, warmup_steps=4))[0]
    assert lrs(outcome) == pytest.approx(
        [0.1 * 1 / 4, 0.1 * 2 / 4, 0.05 * 3 / 4, 0.05, 0.025, 0.025], rel=1e-12
    )
    assert outcome.state(6)["optimizer"]["param_groups"][0]["lr"] == 0.1 / 8


def test_warmup_changes_the_weights(ranks):
    one = replace(SETTINGS, steps=1, seed=1)
    alone = ranks(1)
    full = alone.results(run_task, Plain(), one)[0].weights()["weight"]
    warm = alone.results(run_task, Plain(), replace(one, warmup_steps=4))[0].weights()["weight"]
    still = alone.results(run_task, Plain(lr=0.0), one)[0].weights()["weight"]
    assert torch.allclose(4 * (warm - still), full - still, atol=1e-6) and not torch.equal(full, still)


def test_another_global_batch_on_resume_takes_the_learning_rate_along(ranks):
    settings = replace(SETTINGS, lr_scaling="linear", save_every_steps=2)
    first = ranks(1).results(run_task, Halving(), settings)[0]
    rest = ranks(2).results(run_task, Halving(), settings, first.saves[2])[0]
    assert lrs(first)[2:] == [0.05, 0.05, 0.025, 0.025]
    assert lrs(rest) == [0.1, 0.1, 0.05, 0.05]


class Cosine(Plain):
    def scheduler(self, optimizer, total_steps):
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total_steps)


def test_a_longer_run_follows_its_own_schedule_after_the_resume(ranks):
    alone = ranks(1)
    short = alone.results(run_task, Cosine(), replace(SETTINGS, steps=4))[0]
    rest = alone.results(run_task, Cosine(), replace(SETTINGS, steps=8), short.saves[4])[0]
    whole = alone.results(run_task, Cosine(), replace(SETTINGS, steps=8))[0]
    assert lrs(rest) == lrs(whole)[4:] and lrs(rest)[0] == pytest.approx(0.05)


def test_accumulation_and_ranks_equal_one_larger_batch(ranks):
    settings = TrainSettings(epochs=2, global_batch_size=12)
    expected = ranks(1).results(run_task, Plain(51), settings)[0]  # a tail of 3: 12 × 4 + 3
    for world_size, accumulate in [(1, 3), (2, 2), (3, 1), (3, 2)]:
        outcome = ranks(world_size).results(run_task, Plain(51), replace(settings, accumulate=accumulate))[0]
        if world_size == 2:  # two ranks leave one sample of each epoch out
            assert outcome.result.step == expected.result.step
            continue
        assert outcome.result.step == expected.result.step
        for name, value in expected.weights().items():
            assert torch.allclose(outcome.weights()[name], value, rtol=1e-4, atol=1e-6), (
                world_size,
                accumulate,
            )


def test_clipping_bounds_the_step_and_logs_the_norm_before(ranks):
    outcome = ranks(2).results(run_task, Plain(lr=1.0), replace(SETTINGS, steps=1, clip_norm=0.01))[0]
    still = ranks(2).results(run_task, Plain(lr=0.0), replace(SETTINGS, steps=1))[0]
    moved = math.sqrt(
        sum(float((outcome.weights()[k] - v).square().sum()) for k, v in still.weights().items())
    )
    assert moved == pytest.approx(0.01, rel=1e-3)
    assert outcome.logs[0]["grad_norm"] > 0.01


class Plateau(Plain):
    def scheduler(self, optimizer, total_steps):
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)


def test_a_scheduler_that_waits_for_a_metric_is_refused(ranks):
    with pytest.raises(JobError, match="ReduceLROnPlateau"):
        ranks(1).results(run_task, Plateau(), SETTINGS)
