"""The loss of a line of the log, and what is said of a loss that is not finite."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from clustertrain.training.step.counted import Counts
from clustertrain.training.step.not_finite import NotFinite
from clustertrain.training.step.precision import Precision
from clustertrain.training.step.running_loss import Meter, NonFiniteLoss
from training.ranks import ALONE
from training.tasks import Plain


def meter_of(rank_info):
    not_finite = NotFinite(nn.Linear(1, 1), Precision("fp32", rank_info.device))
    return Meter(rank_info, not_finite, Counts(Plain(), rank_info))


def test_the_mean_is_over_samples_and_restarts_after_each_line():
    meter = meter_of(ALONE)
    meter.add(1, torch.tensor(2.0), 3)
    meter.flush()
    meter.add(2, torch.tensor(6.0), 1)
    assert meter.read()[0] == 3.0
    meter.add(3, torch.tensor(5.0), 2)
    assert meter.read()[0] == 5.0


def test_a_sum_weighs_by_its_count_also_in_what_another_process_continues():
    meter = meter_of(ALONE)
    meter.add(1, torch.tensor(6.0), 2, 3.0)
    meter.add(1, torch.tensor(0.0), 2, 0.0)
    again = meter_of(ALONE)
    again.load(meter.state(), meter.unflushed())
    for each in (meter, again):
        each.add(2, torch.tensor(4.0), 2, torch.tensor(1.0))
        each.flush()
        assert each.state() == [10.0, 4.0, 6.0]


def _poisoned(rank_info):
    meter = meter_of(rank_info)
    for step in range(1, 6):
        bad = (rank_info.rank, step) in {(1, 4), (2, 3)}
        meter.add(step, torch.tensor(float("inf") if bad else 1.0), 1)
    meter.flush()


def test_the_first_bad_step_of_any_rank_is_named_on_all(ranks):
    errors = ranks(3).call(_poisoned)
    assert {type(e) for e in errors} == {NonFiniteLoss}
    [text] = {str(e) for e in errors}
    assert text.startswith("The loss of step 3 is inf on rank 2; nothing from step 3 on was saved.")
    assert "clip_norm" in text and len(text.splitlines()) <= 3


class Root(nn.Module):
    def forward(self, x):
        return (x - 1).sqrt()


def where_of(model, x):
    def loss_of(model):
        return model(x).mean()

    watch = NotFinite(model, Precision("fp32", torch.device("cpu")))
    watch.look(loss_of(model), loss_of)
    assert not model._forward_hooks, "no hook stays"
    return watch.where


MODEL = nn.Sequential(nn.Identity(), nn.Sequential(nn.Identity(), Root()), nn.Identity())


def test_the_first_module_whose_output_is_not_finite_is_named():
    assert where_of(MODEL, torch.zeros(2)).startswith(
        "The output of 1.1 (Root) is the first that is not finite.\n"
    )


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
