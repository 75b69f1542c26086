"""What a loss that is not finite comes from."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from clustertrain.training.step.not_finite import NotFinite
from clustertrain.training.step.precision import Precision


class Root(nn.Module):
    def forward(self, x):
        return (x - 1).sqrt()


def where_of(model, x, loss_of_outputs=torch.mean):
    def loss_of(model):
        return loss_of_outputs(model(x))

    watch = NotFinite(model, Precision("fp32", torch.device("cpu")))
    watch.look(loss_of(model), loss_of)
    assert not model._forward_hooks, "no hook stays"
    return watch.where


MODEL = nn.Sequential(nn.Identity(), nn.Sequential(nn.Identity(), Root()), nn.Identity())


def test_the_first_module_whose_output_is_not_finite_is_named():
    assert where_of(MODEL, torch.zeros(2)).startswith(
        "The output of 1.1 (Root) is the first that is not finite.\n"
    )


def test_the_loss_function_is_named_if_every_output_is_finite():
    where = where_of(nn.Identity(), torch.zeros(2), lambda outputs: outputs.log().mean())
    assert where.startswith("Every module's output was finite: look at the targets and the loss function.\n")


def test_a_finite_loss_and_a_loss_that_cannot_be_computed_again_name_no_module():
    assert where_of(MODEL, torch.full((2,), 5.0)) == ""
    watch = NotFinite(MODEL, Precision("fp32", torch.device("cpu")))
    watch.look(torch.tensor(float("nan")), lambda model: 1 / 0)
    assert watch.where == ""


def finds_alone(rank_info, model, x):
    """What rank 0 says, which is the only one that looks, and what the ranks exchange after it."""
    watch = NotFinite(model(), Precision("fp32", rank_info.device))
    if rank_info.rank == 0:
        watch.look(torch.tensor(float("nan")), lambda model: model(x).sum())
    number = torch.tensor([rank_info.rank + 1])
    dist.all_reduce(number)
    return watch.where, number.item()


class Gathers(nn.Module):
    def forward(self, x):
        dist.all_reduce(x)
        return x


def synchronized():
    """As its forward pass in training, on the CPU: torch has it for GPUs only."""
    return nn.Sequential(nn.Identity(), Gathers())


@pytest.mark.parametrize(("x", "said"), [(1.0, ""), (float("nan"), "The output of 0 (Identity)")])
def test_a_rank_that_looks_alone_calls_no_collective(ranks, x, said):
    first, other = ranks(2).results(finds_alone, synchronized, torch.full((2,), x))
    assert first[0].startswith(said) and bool(first[0]) == bool(said)
    assert (first[1], other) == (3, ("", 3))
