"""What a loss that is not finite comes from, and the remedies that the job lacks."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from clustertrain.training.settings import LearningRate, TrainSettings
from clustertrain.training.step.not_finite import NotFinite, remedies
from clustertrain.training.step.precision import Precision

SETTINGS = TrainSettings(epochs=1, batch_size=4)


class Root(nn.Module):
    def forward(self, x):
        return (x - 1).sqrt()


def hint_of(model, x, loss_of_outputs=torch.mean, settings=SETTINGS):
    def loss_of(model):
        return loss_of_outputs(model(x))

    watch = NotFinite(model, settings, Precision("fp32", torch.device("cpu")))
    watch.look(loss_of(model), loss_of)
    assert not model._forward_hooks, "no hook stays"
    return watch.hint()


MODEL = nn.Sequential(nn.Identity(), nn.Sequential(nn.Identity(), Root()), nn.Identity())


def test_the_first_module_whose_output_is_not_finite_is_named():
    assert hint_of(MODEL, torch.zeros(2)).startswith(
        "The output of 1.1 (Root) is the first that is not finite.\n"
    )


def test_a_bad_sample_is_told_from_a_bad_module():
    bad = torch.tensor([2.0, float("nan")])
    assert hint_of(MODEL, bad).startswith("The input of 0 (Identity) is the first that is not finite.\n")


def test_the_loss_function_is_named_if_every_output_is_finite():
    hint = hint_of(nn.Identity(), torch.zeros(2), lambda outputs: outputs.log().mean())
    assert hint.startswith("Every module's output was finite: look at the targets and the loss function.\n")


def test_a_finite_loss_and_a_loss_that_cannot_be_computed_again_name_no_module():
    assert hint_of(MODEL, torch.full((2,), 5.0)) == remedies(SETTINGS)
    watch = NotFinite(MODEL, SETTINGS, Precision("fp32", torch.device("cpu")))
    watch.look(torch.tensor(float("nan")), lambda model: 1 / 0)
    assert watch.hint() == remedies(SETTINGS)


def finds_alone(rank_info, model, x):
    """The hint of rank 0, which is the only one that looks, and what the ranks exchange after it."""
    watch = NotFinite(model(), SETTINGS, Precision("fp32", rank_info.device))
    if rank_info.rank == 0:
        watch.look(torch.tensor(float("nan")), lambda model: model(x).sum())
    number = torch.tensor([rank_info.rank + 1])
    dist.all_reduce(number)
    return watch.hint(), number.item()


class Gathers(nn.Module):
    def forward(self, x):
        dist.all_reduce(x)
        return x


def synchronized():
    """As its forward pass in training, on the CPU: torch has it for GPUs only."""
    return nn.Sequential(nn.Identity(), Gathers())


@pytest.mark.parametrize(("x", "said"), [(1.0, ""), (float("nan"), "The input of 0 (Identity)")])
def test_a_rank_that_looks_alone_calls_no_collective(ranks, x, said):
    first, other = ranks(2).results(finds_alone, synchronized, torch.full((2,), x))
    assert first[0].startswith(said + ("" if said else remedies(SETTINGS)))
    assert (first[1], other) == (3, (remedies(SETTINGS), 3))


@pytest.mark.parametrize(
    ("has", "text"),
    [
        ({}, "Lower the learning rate, set train.clip_norm, set train.lr.warmup_steps"),
        ({"clip_norm": 1.0}, "Lower the learning rate, set train.lr.warmup_steps"),
        ({"lr": LearningRate(warmup_steps=10)}, "Lower the learning rate, set train.clip_norm"),
        ({"clip_norm": 1.0, "lr": LearningRate(warmup_steps=10)}, "Lower the learning rate"),
    ],
)
def test_what_the_job_has_already_is_no_remedy(has, text):
    assert remedies(replace(SETTINGS, **has)) == text
