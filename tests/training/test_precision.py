"""fp16 with torch's own loss scaler, on the CPU: steps that overflow, and what a resume restores."""

from dataclasses import replace

import pytest
import torch

from clustertrain.training import preparing
from clustertrain.training.settings import SaveEvery, TrainSettings
from clustertrain.training.step.precision import LossScaler, Precision
from training.ranks import ALONE
from training.tasks import Classify, Plain, run_task, same

SETTINGS = TrainSettings(steps=12, batch_size=4, log_every=1, save_every=SaveEvery(steps=1), clip_norm=1.0)
CPU = torch.device("cpu")


class Fp16OnCpu(Precision):
    """Without the refusal: torch can compute in fp16 on a CPU, only slowly."""

    def __init__(self, name, device):
        super().__init__("fp32", device)
        self._dtype = torch.float16
        self.scaler = LossScaler(device, enabled=True)


class Overflowing(Plain):
    """At the scale 65536, with which the scaler starts, the gradients are too large for fp16."""

    def loss(self, model, batch):
        return super().loss(model, batch) * 10

    def scheduler(self, optimizer, total_steps):
        return torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)


def in_fp16(rank_info, task, settings, state=None):
    precision, preparing.Precision = preparing.Precision, Fp16OnCpu
    try:
        return run_task(rank_info, task, settings, state)
    finally:
        preparing.Precision = precision


def test_steps_that_overflow_are_skipped_and_counted(ranks):
    outcomes = ranks(2).results(in_fp16, Overflowing(lr=0.01), SETTINGS)
    skipped, scales = outcomes[0].logged("train", "skipped_steps"), outcomes[0].logged("train", "loss_scale")
    assert 0 < skipped[-1] < 12 and skipped == sorted(skipped)
    assert scales == [65536 * 0.5**count for count in skipped], "each skipped step halves the scale"
    assert [outcome.result.skipped_steps for outcome in outcomes] == [skipped[-1]] * 2
    state = outcomes[0].state(12)
    assert state["scheduler"]["last_epoch"] == 12 - skipped[-1], (
        "the scheduler counts the steps that were made"
    )
    unchanged = [step for step in range(2, 13) if skipped[step - 1] > skipped[step - 2]]
    for step in unchanged:
        assert same(outcomes[0].state(step)["model"], outcomes[0].state(step - 1)["model"])
    assert same(outcomes[0].weights(), outcomes[1].weights())


@pytest.mark.parametrize("step", [1, 6])
def test_a_resume_restores_the_scale_and_the_count(ranks, step):
    whole = ranks(2).results(in_fp16, Overflowing(lr=0.01), SETTINGS)[0]
    resumed = ranks(2).results(in_fp16, Overflowing(lr=0.01), SETTINGS, whole.saves[step])[0]
    assert resumed.logged("train", "loss_scale") == whole.logged("train", "loss_scale")[step:]
    assert resumed.logged("train", "skipped_steps") == whole.logged("train", "skipped_steps")[step:]
    assert same(resumed.state(12), whole.state(12)), "bit-identical"
    assert resumed.result == whole.result


def test_a_finished_run_that_is_started_again_has_its_count():
    whole = in_fp16(ALONE, Overflowing(lr=0.01), SETTINGS)
    again = in_fp16(ALONE, Overflowing(lr=0.01), SETTINGS, whole.saves[12])
    assert again.result.skipped_steps == whole.result.skipped_steps > 0


def test_the_growth_of_the_scale_is_restored():
    """The scale doubles after 2000 steps without an overflow, also if a resume is among them."""
    scaler = LossScaler(CPU, enabled=True)
    scaler.load({**stepped(scaler), "_growth_tracker": 1998})
    for expected in (65536.0, 131072.0):
        state = stepped(scaler)
        assert state["scale"] == expected
        scaler = LossScaler(CPU, enabled=True)
        scaler.load(state)


def stepped(scaler):
    weight = torch.nn.Parameter(torch.ones(1))
    scaler.backward(weight.sum())
    scaler.step(torch.optim.SGD([weight], lr=0.5))
    assert scaler.was_made()
    assert weight.item() == 0.5, "the gradient was scaled down"
    return scaler.state()


def test_other_precisions_scale_and_count_nothing():
    outcome = run_task(ALONE, Classify(), replace(SETTINGS, precision="bf16"))
    assert outcome.result.skipped_steps is None
    assert not any("loss_scale" in record or "skipped_steps" in record for record in outcome.logs)
    assert outcome.state(12)["scaler"] == {}
    assert {value.dtype for value in outcome.weights().values()} <= {torch.float32, torch.int64}


def test_a_run_in_fp16_continues_in_another_precision_and_back():
    half = in_fp16(ALONE, Overflowing(lr=0.01), replace(SETTINGS, steps=4))
    single = run_task(ALONE, Overflowing(lr=0.01), replace(SETTINGS, steps=8), half.saves[4])
    again = in_fp16(ALONE, Overflowing(lr=0.01), SETTINGS, single.saves[8])
    assert again.logged("train", "loss_scale")[0] in (65536, 32768), "fp32 has no scale, so it starts again"
