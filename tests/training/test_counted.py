"""Losses that are sums: with counts the numbers are those of one process, without counts the sum is named."""

import math
from collections import UserDict
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from clustertrain import Task
from clustertrain.errors import DataError, JobError
from clustertrain.training.ranks.rng import pack_rng
from clustertrain.training.rehearsal import rehearse
from clustertrain.training.settings import EvalEvery, SaveEvery, TrainSettings
from clustertrain.training.step.precision import Precision
from clustertrain.training.summed_loss import sum_warning
from training.ranks import ALONE
from training.tasks import Classify, Net, Plain, run_task, same
from training.test_precision import in_fp16

SETTINGS = TrainSettings(steps=6, global_batch_size=8, clip_norm=0.1, log_every=1)
LAYOUTS = [(2, 1), (1, 4), (2, 2)]


class Texts(Task):
    """Sequences of 2 to 12 tokens, padded with -1; `empty` ones have one, and nothing to predict."""

    def __init__(self, empty: tuple[int, ...] = ()) -> None:
        self.empty = empty

    def model(self):
        return nn.Sequential(nn.Embedding(20, 8, sparse=True), nn.Linear(8, 20))

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=1.0)

    def train_data(self, data, n=28, empty=None):
        generator = torch.Generator().manual_seed(n)
        tokens = torch.randint(0, 20, (n, 12), generator=generator)
        lengths = torch.randint(2, 13, (n,), generator=generator)
        lengths[list(self.empty if empty is None else empty)] = 1
        return TensorDataset(tokens.where(torch.arange(12) < lengths[:, None], -1))

    def eval_data(self, data):
        return self.train_data(data, 13, ())

    def loss(self, model, batch):
        (tokens,) = batch
        x, y = tokens[:, :-1].flatten(), tokens[:, 1:].flatten()
        loss = functional.cross_entropy(model(x.clamp(min=0)), y, ignore_index=-1, reduction="sum")
        return loss, (y != -1).sum()


class DenseTexts(Texts):
    """Its gradients are not sparse, so that they have a norm, and its count is a number."""

    def model(self):
        return nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20))

    def loss(self, model, batch):
        loss, count = super().loss(model, batch)
        return loss, int(count)


class Weighted(Task):
    """A regression whose samples have weights; its count is their sum, and no whole number."""

    def model(self):
        return nn.Linear(4, 1)

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def train_data(self, data):
        x = torch.randn(28, 4, generator=torch.Generator().manual_seed(1))
        return TensorDataset(x, x.sum(1), torch.rand(28, generator=torch.Generator().manual_seed(2)) ** 4)

    def eval_data(self, data):
        return TensorDataset(*(part[:13] for part in self.train_data(data).tensors))

    def loss(self, model, batch):
        x, y, weight = batch
        return (weight * (model(x).squeeze(1) - y).square()).sum(), weight.sum()


@pytest.mark.parametrize(("task", "clip_norm"), [(DenseTexts(), 0.1), (Weighted(), 0.5), (Texts(), None)])
def test_counted_losses_have_the_numbers_of_one_process(ranks, task, clip_norm):
    settings = replace(SETTINGS, clip_norm=clip_norm, eval_every=EvalEvery(steps=2))
    alone = run_task(ALONE, task, settings)
    if isinstance(task, Texts):
        ((texts,),) = (task.eval_data({}).tensors,)
        model = task.model()
        model.load_state_dict(alone.weights())
        loss, count = task.loss(model, (texts,))
        assert alone.result.metrics["loss"] == pytest.approx((loss / count).item(), rel=1e-6)
    for world_size, accumulate in LAYOUTS:
        outcome = ranks(world_size).results(run_task, task, replace(settings, accumulate=accumulate))[0]
        for kind, names in [("train", ["loss", "grad_norm"]), ("eval", ["loss"])]:
            for one, other in zip(alone.of_kind(kind), outcome.of_kind(kind), strict=True):
                for name in filter(one.get, names):
                    assert other[name] == pytest.approx(one[name], rel=1e-5), (world_size, accumulate, kind)
        for name, weights in alone.weights().items():
            torch.testing.assert_close(outcome.weights()[name], weights, rtol=1e-5, atol=1e-6)


def test_a_loss_scaler_sees_the_same_gradients(ranks):
    alone = run_task(ALONE, DenseTexts(), SETTINGS)
    outcome = ranks(2).results(in_fp16, DenseTexts(), replace(SETTINGS, accumulate=2))[0]
    for one, other in zip(alone.of_kind("train"), outcome.of_kind("train"), strict=True):
        assert (other["skipped_steps"], other["loss_scale"]) == (0, 65536)
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-2)
        assert other["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-2)


class Noting(DenseTexts):
    """Keeps what its passes returned, and what the callback was given."""

    def __init__(self) -> None:
        super().__init__()
        self.passes, self.noted = [], []

    def loss(self, model, batch):
        loss, count = super().loss(model, batch)
        self.passes.append((loss.item(), count))
        return loss, count

    def on_step(self, step, metrics):
        self.noted.append((float(metrics["loss"]), self.passes[-2:]))


def _noted(rank_info, *args):
    task = Noting()
    run_task(rank_info, task, *args)
    return task.noted


def test_a_callback_has_the_mean_of_its_rank(ranks):
    of_ranks = ranks(2).results(_noted, replace(SETTINGS, accumulate=2, steps=3))
    assert [len(noted) for noted in of_ranks] == [3, 3]
    for loss, passes in of_ranks[0] + of_ranks[1]:
        sums, counts = zip(*passes, strict=True)
        assert loss == pytest.approx(sum(sums) / sum(counts), rel=1e-6)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_rank_may_count_nothing_and_a_step_may_not(ranks, strategy):
    settings = replace(SETTINGS, global_batch_size=2, steps=14, strategy=strategy)
    task = DenseTexts(empty=(3,))
    alone = run_task(ALONE, task, settings)
    outcome = ranks(2).results(run_task, task, settings)[0]
    for one, other in zip(alone.of_kind("train"), outcome.of_kind("train"), strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-5)
        assert other["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-5)
    for error in ranks(2).call(run_task, DenseTexts(empty=(*range(27),)), settings):
        assert isinstance(error, DataError)
        assert str(error).startswith("DenseTexts.loss() counted 0 on all ranks in step ")


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_resume_is_bit_identical(ranks, world_size):
    settings = replace(SETTINGS, accumulate=2, log_every=4, save_every=SaveEvery(steps=1))
    whole = ranks(world_size).results(run_task, Weighted(), settings)[0]
    assert whole.state(1)["count_unit"] == 1
    texts = ranks(world_size).results(run_task, DenseTexts(), replace(settings, steps=3))[0]
    assert texts.state(3)["count_unit"] in {8, 16, 32}
    resumed = ranks(world_size).results(run_task, Weighted(), settings, whole.saves[3])[0]
    assert same(resumed.state(6), whole.state(6))
    assert resumed.of_kind("train")[0]["loss"] == whole.of_kind("train")[0]["loss"]


class Changing(Weighted):
    """Returns a mean from the third pass of this process on, or on one rank."""

    def __init__(self, means_from: int = 99, rank: int | None = None) -> None:
        self.passes, self.means_from, self.rank = 0, means_from, rank

    def loss(self, model, batch):
        self.passes += 1
        loss, count = super().loss(model, batch)
        own_rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        return loss / count if self.passes >= self.means_from or own_rank == self.rank else (loss, count)


class ChangingEvaluation(Changing):
    def eval_step(self, model, batch):
        return (self.loss(model, batch) if len(batch[0]) > 1 else torch.ones(())), None, None


def test_another_kind_of_loss_is_refused(ranks):
    with pytest.raises(
        JobError, match=r"Changing.loss\(\) returned a mean, and \(sum, count\) before.\nReturn"
    ):
        run_task(ALONE, Changing(means_from=6), replace(SETTINGS, eval_every=EvalEvery(steps=99)))
    for error in ranks(2).call(run_task, Changing(rank=1), SETTINGS):
        assert str(error).startswith(
            "Changing.loss() returned a mean on rank 1, and (sum, count) on rank 0.\nReturn the same"
        )
    odd = replace(SETTINGS, steps=1, global_batch_size=4)
    with pytest.raises(JobError, match=r"eval_step\(\) returned a mean, and \(sum, count\) before"):
        run_task(ALONE, ChangingEvaluation(), odd)


class Uncounted(Weighted):
    def eval_step(self, model, batch):
        loss, _ = self.loss(model, batch)
        return (0 * loss, 0), None, None


def test_an_evaluation_that_counts_nothing_is_refused():
    with pytest.raises(DataError, match=r"Uncounted.eval_step\(\) counted 0 over all of eval_data\(\)"):
        run_task(ALONE, Uncounted(), replace(SETTINGS, steps=1))


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


PAIR = [X, Y]
SUMS = {
    "a reconstruction": (lambda m, b: squares(m, b).sum(), PAIR),
    "classes of an odd batch": (lambda m, b: entropies(m, b, "sum"), [X[:7], Y[:7]]),
    "two samples": (lambda m, b: entropies(m, b, "sum"), [X[:2], Y[:2]]),
    "a dictionary": (lambda m, b: squares(m, b).sum(), {"x": X, "more": [Y, (X, Y)]}),
    "with noise": (lambda m, b: (squares(m, b) + 0.1 * torch.rand(len(b[0]), 3)).sum(), PAIR),
}
NOT_SUMS = {
    "a mean": (lambda m, b: entropies(m, b, "mean"), PAIR),
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


def test_the_ranks_and_the_rehearsal_name_a_summed_loss_once(ranks):
    settings = TrainSettings(steps=4, global_batch_size=8, save_every=SaveEvery(steps=2))
    first, second = ranks(2).results(run_task, Summed(lr=0.01), settings)
    (text,) = first.logged("warning", "text")
    assert text.startswith("the loss of Summed is a sum over the batch: ") and " for 4 samples" in text
    assert second.logged("warning", "text") == []
    tried = replace(settings, sanity=False)
    assert (
        ranks(2).results(run_task, Summed(lr=0.01), tried, first.saves[2])[0].logged("warning", "text") == []
    )
    assert ranks(2).results(run_task, Plain(), settings)[0].logged("warning", "text") == []
    said = []
    rehearse(Summed(), settings, CPU, {}, world_size=2, warn=said.append)
    assert [each.split(": ")[:2] for each in said] == [
        ["warning", "the loss of Summed is a sum over the batch"]
    ]
    rehearse(Classify(), replace(settings, global_batch_size=16), CPU, {}, warn=said.append)
    assert len(said) == 1
