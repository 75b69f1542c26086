"""A loss that is a sum is named, and a mean never is."""

import math
from collections import UserDict
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from clustertrain.training.ranks.rng import pack_rng
from clustertrain.training.rehearsal import rehearse
from clustertrain.training.settings import SaveEvery, TrainSettings
from clustertrain.training.step.precision import Precision
from clustertrain.training.summed_loss import sum_warning
from training.tasks import Classify, Net, Plain, run_task

CPU = torch.device("cpu")
X = torch.randn(32, 6, generator=torch.Generator().manual_seed(1))
Y = torch.arange(32) % 3


def squares(model, batch):
    return (model(batch["x"] if isinstance(batch, dict) else batch[0]) - 1).square()


def entropies(model, batch, reduction):
    return functional.cross_entropy(model(batch[0]), batch[1], reduction=reduction)


def contrast(model, batch, scale=1.0):
    """Each sample against all others of the batch, as in SimCLR and CLIP."""
    outputs = functional.normalize(model(batch[0]), dim=1)
    return functional.cross_entropy(outputs @ outputs.T * scale, torch.arange(len(outputs)))


def noisy(model, batch):
    """As a diffusion model, whose error depends on the time that is drawn."""
    return (squares(model, batch).mean(1) * torch.rand(len(batch[0])).log().square()).mean()


def by_labels(model, batch):
    losses = functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
    return (losses * (batch[1] == 0)).sum() / (batch[1] == 0).sum()


PAIR = [X, Y]
SUMS = {
    "a reconstruction": (lambda m, b: squares(m, b).sum(), PAIR),
    "classes": (lambda m, b: entropies(m, b, "sum"), PAIR),
    "classes of an odd batch": (lambda m, b: entropies(m, b, "sum"), [X[:7], Y[:7]]),
    "two samples": (lambda m, b: entropies(m, b, "sum"), [X[:2], Y[:2]]),
    "a dictionary": (lambda m, b: squares(m, b).sum(), {"x": X, "more": [Y, (X, Y)]}),
    "with noise": (lambda m, b: (squares(m, b) + 0.1 * torch.rand(len(b[0]), 3)).sum(), PAIR),
    "of the means of the samples": (lambda m, b: squares(m, b).mean(1).sum(), PAIR),
}
NOT_SUMS = {
    "a mean": (lambda m, b: entropies(m, b, "mean"), PAIR),
    "a mean of some": (by_labels, PAIR),
    "a sum and a count": (lambda m, b: (entropies(m, b, "sum"), len(b[0])), PAIR),
    "a sum of one sample": (lambda m, b: entropies(m, b, "sum"), [X[:1], Y[:1]]),
    "almost nothing": (lambda m, b: 1e-9 * entropies(m, b, "sum"), PAIR),
    "nothing": (lambda m, b: 0 * entropies(m, b, "sum"), PAIR),
    "around zero": (lambda m, b: m(b[0]).mean(), PAIR),
    "not finite": (lambda m, b: math.inf * entropies(m, b, "sum"), PAIR),
    "texts": (lambda m, b: entropies(m, b, "sum"), [X, Y, ["a"] * 32]),
    "another object": (lambda m, b: squares(m, [b["x"]]).sum(), UserDict(x=X)),
    "its own number of samples": (lambda m, b: entropies(m, b, "sum") / b[2], [X, Y, torch.tensor(32)]),
    "an error with parts": (lambda m, b: entropies(m, b, "sum") if len(b[0]) == 32 else b[9], PAIR),
    **{
        f"half a contrast of {n}": (lambda m, b: math.log(2) + contrast(m, b), [X[:n], Y[:n]])
        for n in (2, 3, 4, 8)
    },
    **{f"contrast of {n}": (contrast, [X[:n], Y[:n]]) for n in (2, 3, 4, 6, 8, 32)},
    **{f"clear contrast of {n}": (lambda m, b: contrast(m, b, 20), [X[:n], Y[:n]]) for n in (4, 16, 32)},
    **{f"noise of {n}": (noisy, [X[n : n + 2], Y[n : n + 2]]) for n in range(12)},
}


class OfLoss(Classify):
    def __init__(self, loss):
        super().__init__()
        self.loss = loss


@pytest.mark.parametrize(
    ("case", "is_sum"), [(case, True) for case in SUMS] + [(case, False) for case in NOT_SUMS]
)
def test_only_a_sum_is_named_and_nothing_changes(case, is_sum):
    loss, batch = (SUMS if is_sum else NOT_SUMS)[case]
    torch.manual_seed(0)
    model = Net(dropout=0.5).train()  # with BatchNorm
    model.layers[3].eval()
    before = pack_rng(CPU), [each.clone() for each in model.state_dict().values()]
    text = sum_warning(OfLoss(loss), model, batch, precision=Precision("fp32", CPU), device=CPU)
    assert text.startswith("the loss of OfLoss is a sum over the batch: ") == is_sum, text
    assert not is_sum or (text.endswith("return the mean, or (loss, count)") and "\n" not in text)
    assert torch.equal(pack_rng(CPU), before[0])
    assert all(map(torch.equal, model.state_dict().values(), before[1]))
    assert (model.training, model.layers[1].training, model.layers[3].training) == (True, True, False)


class Summed(Plain):
    def loss(self, model, batch):
        return functional.mse_loss(model(batch[0]), batch[1], reduction="sum")


def warnings_of(outcome):
    return [record["text"] for record in outcome.logs if record["kind"] == "warning"]


def test_the_ranks_and_the_rehearsal_say_so_once(ranks):
    settings = TrainSettings(steps=4, global_batch_size=8, save_every=SaveEvery(steps=2))
    first, second = ranks(2).results(run_task, Summed(lr=0.01), settings)
    (text,) = warnings_of(first)
    assert text.startswith("the loss of Summed is a sum over the batch: ") and " for 4 samples" in text
    assert warnings_of(second) == []
    tried = replace(settings, sanity=False)
    assert warnings_of(ranks(2).results(run_task, Summed(lr=0.01), tried, first.saves[2])[0]) == []
    assert warnings_of(ranks(2).results(run_task, Plain(), settings)[0]) == []
    said = []
    rehearse(Summed(), settings, CPU, {}, world_size=2, warn=said.append)
    assert [each.split(": ")[:2] for each in said] == [
        ["warning", "the loss of Summed is a sum over the batch"]
    ]
    rehearse(Classify(), replace(settings, global_batch_size=16), CPU, {}, warn=said.append)
    assert len(said) == 1
