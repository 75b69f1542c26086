"""Eleven samples, evaluated by any number of ranks: each counts once."""

import random
from dataclasses import replace

import pytest
import torch
from torch.utils.data import TensorDataset

from clustertrain import Task
from clustertrain.training.ranks.rng import pack_rng
from clustertrain.training.settings import EvalEvery, SaveEvery, TrainSettings
from training.ranks import ALONE
from training.tasks import Net, evaluation_of, run_task

SETTINGS = TrainSettings(steps=1, batch_size=2)


class Eleven(Task):
    """Frozen: the weights, and so what is measured, are those of the start."""

    lr = 0.0

    def model(self):
        return Net()

    def train_data(self, data):
        generator = torch.Generator().manual_seed(0)
        return TensorDataset(torch.randn(32, 6, generator=generator), torch.zeros(32, dtype=torch.int64))

    def eval_data(self, data):
        generator = torch.Generator().manual_seed(1)
        return TensorDataset(torch.randn(11, 6, generator=generator), torch.arange(11) % 3)

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.0)


class Measured(Eleven):
    """A metric of torchmetrics that averages over classes: no mean of means could be right."""

    def metrics(self):
        from torchmetrics import AUROC
        from torchmetrics.classification import MulticlassF1Score

        return {"f1": MulticlassF1Score(3, average="macro"), "auroc": AUROC("multiclass", num_classes=3)}


def test_metrics_of_torchmetrics_and_the_loss_have_one_value_on_any_number_of_ranks(ranks):
    (alone,) = ranks(1).results(_frozen_evaluation, Measured())
    assert alone.keys() == {"loss", "f1", "auroc"}
    answers = ranks(3).results(_frozen_evaluation, Measured())
    assert all(answer == answers[0] for answer in answers), "the same on every rank"
    assert answers[0] == {**alone, "loss": pytest.approx(alone["loss"], rel=1e-12)}


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_limit_bounds_the_batches_of_an_epoch_and_of_an_evaluation(ranks, world_size):
    settings = TrainSettings(
        epochs=2,
        batch_size=2,
        limit_batches=2,
        log_every=1,
        eval_every=EvalEvery(epochs=1),
        sanity=False,
    )
    outcomes = ranks(world_size).results(_batches, settings)
    assert {counts for counts, _, _ in outcomes} == {(4, 4)}, "two epochs of two steps and two batches each"
    assert len({tuple(metrics.items()) for _, metrics, _ in outcomes}) == 1
    logs = outcomes[0][2]
    (warning,) = [record["text"] for record in logs if record["kind"] == "warning"]
    assert f"an epoch has 2 steps ({4 * world_size} of 32 samples)" in warning
    assert "not of the whole data" in warning
    progress = [(r["epoch"], r["epoch_progress"], r["total_steps"]) for r in logs if r["kind"] == "train"]
    assert progress == [(0, 0.5, 4), (1, 0.0, 4), (1, 0.5, 4), (2, 0.0, 4)]


def _batches(rank_info, settings):
    task = Counting()
    outcome = run_task(rank_info, task, settings)
    counts = (task.trained - (2 if rank_info.world_size > 1 else 0), task.evaluated)
    return counts, outcome.result.metrics, outcome.logs


class Counting(Eleven):
    trained = evaluated = 0

    def loss(self, model, batch):
        self.trained += torch.is_grad_enabled()
        return super().loss(model, batch)

    def eval_step(self, model, batch):
        self.evaluated += 1
        return super().eval_step(model, batch)


def _frozen_evaluation(rank_info, task):
    """Only the evaluation: one training step would move BatchNorm's running values by other batches."""
    torch.manual_seed(0)
    model = task.model().double()  # sums of doubles agree to 1e-12 in any order
    dataset = task.eval_data({})
    dataset = TensorDataset(dataset.tensors[0].double(), dataset.tensors[1])
    with torch.no_grad():
        model.layers[1].running_mean += rank_info.rank  # as after steps on different batches
    return evaluation_of(rank_info, task, model, dataset).run(step=1)


class Watching(Eleven):
    """Freezes a layer by hand, and uses random numbers in its evaluation."""

    def eval_step(self, model, batch):
        assert not any(module.training for module in model.modules())
        random.random()
        torch.randn(1)
        assert not torch.is_grad_enabled()
        return super().eval_step(model, batch)


def _leaves_no_trace(rank_info):
    task = Watching()
    model = task.model()
    model.layers[1].eval()
    evaluation = evaluation_of(rank_info, task, model, task.eval_data({}), batch_size=4, precision="bf16")
    before = pack_rng(rank_info.device)
    first, second = evaluation.run(3), evaluation.run(3)
    return (
        first == second,
        torch.equal(before, pack_rng(rank_info.device)),
        model.training and model.layers[3].training,
        model.layers[1].training,
    )


def test_evaluation_leaves_modes_and_random_numbers_as_they_were(ranks):
    assert ranks(2).results(_leaves_no_trace) == [(True, True, True, False)] * 2


def test_a_stop_before_an_evaluation_leaves_its_checkpoint_for_keep_best():
    settings = replace(
        SETTINGS, steps=4, eval_every=EvalEvery(steps=2), save_every=SaveEvery(steps=2), keep_best="loss"
    )
    stopped = run_task(ALONE, Eleven(), settings, None, lambda calls: (calls == 2, False))
    assert [(p.step, p.reason, p.metrics) for p in stopped.progress] == [(2, "stop", {})]
    resumed = run_task(ALONE, Eleven(), settings, stopped.saves[2])
    assert resumed.progress == run_task(ALONE, Eleven(), settings).progress
