"""What a task has beside its model is a part of each checkpoint, or the log names it."""

import copy
import io
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import TensorDataset

from clustertrain import Task
from clustertrain.errors import JobError
from clustertrain.training.loop import train
from clustertrain.training.settings import EvalEvery, SaveEvery, TrainSettings
from training.ranks import ALONE
from training.tasks import Classify, MemoryRun, Plain, run_task, same

SETTINGS = TrainSettings(
    epochs=4, batch_size=16, eval_every=EvalEvery(epochs=1), save_every=SaveEvery(epochs=1)
)
STEPS = TrainSettings(steps=4, batch_size=4, save_every=SaveEvery(steps=2))


def product(n, seed):
    x = torch.randn(n, 8, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())


class Averaged(Task):
    """Evaluates an average of its model."""

    lr = 0.05

    def model(self):
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        self.ema = copy.deepcopy(self.net).requires_grad_(False)
        return self.net

    def train_data(self, data):
        return product(640, 0)

    def eval_data(self, data):
        return product(200, 1)

    def on_step(self, step, metrics):
        for average, parameter in zip(self.ema.parameters(), self.net.parameters(), strict=True):
            average.data.lerp_(parameter.data, 0.01)  # .data: no version of the tensor counts this

    def eval_step(self, model, batch):
        outputs = self.ema(batch[0])
        return functional.cross_entropy(outputs, batch[1]), outputs, batch[1]


class Saved(Averaged):
    def state_dict(self):
        return {"ema": self.ema.state_dict()}

    def load_state_dict(self, state):
        self.ema.load_state_dict(state["ema"])


def test_an_average_of_the_model_is_that_of_an_uninterrupted_run(ranks):
    whole, other = ranks(2).results(run_task, Saved(), SETTINGS)
    assert whole.result.metrics["accuracy"] == pytest.approx(0.825, abs=0.03)
    resumed = ranks(2).results(run_task, Saved(), SETTINGS, whole.saves[40])
    assert [each.result for each in resumed] == [whole.result] * 2
    assert all(same(each.state(80), whole.state(80)) for each in (other, *resumed))
    assert whole.logged("warning", "text") == []


def test_without_the_methods_the_log_names_the_attribute_once(ranks):
    whole = ranks(2).results(run_task, Averaged(), SETTINGS)[0]
    assert whole.logged("warning", "step") == [20]
    assert whole.logged("warning", "text") == [
        "Averaged.ema: changed since the start, and in no checkpoint: a resume begins with a new one. Write "
        "Averaged.state_dict() and load_state_dict(state)"
    ]
    resumed = ranks(2).results(run_task, Averaged(), SETTINGS, whole.saves[60])[0]
    assert resumed.result.metrics["accuracy"] < 0.7, "why it is said"


def with_statistics(model):
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))


HELD = {
    "an average in a list": (lambda model: [AveragedModel(model)], "kept[0]"),
    "a teacher in training mode": (with_statistics, "kept"),
    "one in a dict with the model": (
        lambda model: {"a": model, "b": with_statistics(model)},
        "kept['b']",
    ),
    "a frozen teacher": (lambda model: with_statistics(model).eval(), None),
    "a part of it": (lambda model: model.layers, None),
    "a wrapper of it": (lambda model: nn.ModuleDict({"student": model}), None),
}


class Holding(Classify):
    """Has another module as the attribute `kept`; an average and a teacher are used in each step."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def model(self):
        self.net = super().model()
        self.kept = HELD[self.kind][0](self.net)
        return self.net

    def on_step(self, step, metrics):
        kept = self.kept["b"] if isinstance(self.kept, dict) else self.kept
        if isinstance(kept, list):
            kept[0].update_parameters(self.net)
        elif isinstance(kept, nn.Sequential) and kept is not self.net.layers:
            kept(torch.randn(5, 6))


@pytest.mark.parametrize("kind", HELD)
def test_only_a_module_that_changes_outside_the_model_is_named(kind):
    named = HELD[kind][1]
    found = run_task(ALONE, Holding(kind), STEPS).logged("warning", "text")
    assert [text.partition(": ")[0] for text in found] == ([f"Holding.{named}"] if named else [])


class Counting(Classify):
    """Its loss changes what the next one computes; the state has the rank that saved it."""

    seen, center, rank = 0, torch.zeros(3), -1

    def loss(self, model, batch):
        outputs = model(batch[0])
        loss = functional.cross_entropy(outputs - self.center, batch[1])
        if torch.is_grad_enabled():  # not where the loss of a batch is compared with those of its halves
            self.seen += 1
            self.center = 0.9 * self.center + 0.1 * self.seen * torch.ones(3).cumsum(0)
        return loss

    def state_dict(self):
        rank = torch.distributed.get_rank()
        return {"seen": self.seen, "of": [self.center], "rank": rank}

    def load_state_dict(self, state):
        self.seen, (self.center,), self.rank = state["seen"], state["of"], state["rank"]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_every_rank_loads_the_state_of_rank_0(ranks, strategy):
    settings = replace(STEPS, strategy=strategy)
    whole = ranks(2).results(run_task, Counting(), settings)
    assert whole[0].state(2)["task"]["seen"] == 2 + {"ddp": 2, "fsdp": 1}[strategy], "and settling passes"
    resumed = ranks(2).results(resume_counting, settings, whole[0].saves[2])
    assert [rank for rank, _ in resumed] == [0, 0]
    end = resumed[0][1].state(4)
    assert same(end["task"], whole[0].state(4)["task"]) and same(end["model"], whole[0].weights())


def resume_counting(rank_info, settings, state):
    task = Counting()
    outcome = run_task(rank_info, task, settings, state)
    return task.rank, outcome


def saved_in_memory(rank_info):
    run = MemoryRun(rank_info.rank)
    settings = replace(STEPS, steps=7, save_every=SaveEvery(), memory_every=3)
    train(Counting(), settings, rank_info, run, {})
    step, saved = max(run.in_memory.items())
    return step, torch.load(io.BytesIO(saved), weights_only=True)["task"]


def test_a_checkpoint_in_memory_has_the_state_of_its_step(ranks):
    """Not that of the next pass, in which another rank may have died."""
    for step, state in ranks(2).results(saved_in_memory):
        assert step == 4 and state["seen"] == 2 + 4


class Half(Plain):
    """Nothing can take its state."""

    def state_dict(self):
        return {"seen": 3}


def test_a_checkpoint_with_a_state_that_nothing_takes_is_refused_and_one_without_named(ranks):
    untried = replace(STEPS, sanity=False)
    with_state = run_task(ALONE, Half(), untried).saves[2]
    for task in (Half(), Plain()):
        with pytest.raises(JobError, match=r"no load_state_dict\(\).*\n.*--fresh"):
            run_task(ALONE, task, STEPS, with_state)
    before = run_task(ALONE, Plain(), STEPS).saves[2]
    warned = run_task(ALONE, Half(), untried, before).logged("warning", "text")
    assert warned == ["the checkpoint has no state of Half, which begins anew"]


class Misfit(Saved):
    def load_state_dict(self, state):
        self.ema[0].load_state_dict(state["ema"])


def test_a_state_that_does_not_fit_names_the_line_of_the_task():
    saved = run_task(ALONE, Saved(), STEPS).saves[2]
    with pytest.raises(JobError, match=r"Misfit.load_state_dict\(\) raised RuntimeError.*\nAt .*:\d+"):
        run_task(ALONE, Misfit(), STEPS, saved)
