"""The callbacks of a task: when each is called, with which values, and what an exception in one says."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from clustertrain.errors import JobError
from clustertrain.training.settings import EvalEvery, SaveEvery, TrainSettings
from training.tasks import Plain, run_task, same

SETTINGS = TrainSettings(
    epochs=2,
    batch_size=4,
    accumulate=2,
    clip_norm=1.0,
    eval_every=EvalEvery(epochs=1),
    save_every=SaveEvery(steps=1),
    log_every=1,
)


class Recording(Plain):
    """48 samples, 3 steps per epoch with two ranks; each call of a callback becomes a record."""

    def __init__(self):
        super().__init__(48)
        self.calls = []
        self.losses = []

    def eval_data(self, data):
        return TensorDataset(torch.ones(6, 4), torch.zeros(6, 1))

    def loss(self, model, batch):
        loss = super().loss(model, batch)
        if loss.requires_grad:  # a pass of a step, or one that settles the buckets
            self.losses.append(loss.item())
        return loss

    def on_step(self, step, metrics):
        assert not metrics["loss"].requires_grad and metrics["loss"].shape == ()
        self.calls.append(("step", step, {name: float(value) for name, value in metrics.items()}))

    def on_epoch(self, epoch):
        self.calls.append(("epoch", epoch))

    def on_eval(self, step, metrics):
        self.calls.append(("eval", step, dict(metrics)))
        metrics["loss"] = "changed"


def recorded(rank_info):
    task = Recording()
    outcome = run_task(rank_info, task, SETTINGS)
    training = task.losses[2 if rank_info.world_size > 1 else 0 :]  # the first two settle the buckets
    return outcome, task.calls, training


def test_every_rank_calls_the_callbacks_in_order_with_its_values(ranks):
    answers = ranks(2).results(recorded)
    for _, calls, _ in answers:
        assert [call[:2] for call in calls] == [
            *[("step", 1), ("step", 2), ("step", 3), ("epoch", 1), ("eval", 3)],
            *[("step", 4), ("step", 5), ("step", 6), ("epoch", 2), ("eval", 6)],
        ]
    (outcome, calls, losses), (_, calls_of_1, _) = answers
    steps = [call[2] for call in calls if call[0] == "step"]
    assert [step["loss"] for step in steps[:3]] == pytest.approx(
        [(losses[i] + losses[i + 1]) / 2 for i in (0, 2, 4)]
    ), "the mean over the two passes of a step"
    logged = outcome.of_kind("train")
    assert [(s["lr"], s["grad_norm"]) for s in steps] == [(r["lr"], r["grad_norm"]) for r in logged]
    evaluated = outcome.logged("eval")
    for of_rank in (calls, calls_of_1):
        assert [call[2]["loss"] for call in of_rank if call[0] == "eval"] == evaluated
    assert outcome.result.metrics == {"loss": evaluated[-1]}, (
        "a callback does not change what the run reports"
    )


class Failing(Recording):
    def on_eval(self, step, metrics):
        raise ConnectionError("the tracker does not answer")


def test_an_exception_in_a_callback_names_it_and_keeps_its_type(ranks):
    (error,) = ranks(1).call(run_task, Failing(), replace(SETTINGS, batch_size=8))
    assert type(error) is ConnectionError and str(error) == "the tracker does not answer"
    assert error.__notes__[0] == "Raised in Failing.on_eval() after step 3."


class Joining(Recording):
    """The bias joins the optimizer after step 3, in one of these ways."""

    def __init__(self, callback, how):
        super().__init__()
        self.callback, self.how = callback, how

    def model(self):
        self.net = nn.Linear(4, 1)
        return self.net

    def optimizer(self, model):
        groups = [{"params": [self.net.weight]}]
        groups += [{"params": [self.net.bias], "lr": 0.0}] * (self.how == "lr")
        self.opt = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
        return self.opt

    def join(self, callback, now):
        groups = self.opt.param_groups
        if not now or callback != self.callback:
            return
        if self.how == "add":
            self.opt.add_param_group({"params": [self.net.bias], "lr": 0.01})
        elif self.how == "replace":
            groups[:] = torch.optim.SGD([self.net.bias], lr=0.01).param_groups
        else:
            groups[1]["lr"] = 0.01

    def on_step(self, step, metrics):
        self.join("on_step", step == 3)

    def on_epoch(self, epoch):
        self.join("on_epoch", epoch == 1)


@pytest.mark.parametrize(
    ("callback", "how", "sizes"),
    [
        ("on_step", "add", "[1, 1]"),
        ("on_epoch", "replace", "[1]"),
    ],
)
def test_other_groups_of_parameters_are_refused_in_their_step(ranks, callback, how, sizes):
    for error in ranks(2).call(run_task, Joining(callback, how), SETTINGS):
        assert isinstance(error, JobError)
        assert f"After step 3 the optimizer has other groups of parameters, {sizes}, than Joining." in str(
            error
        )
        assert "with lr 0 until they join" in str(error)
        assert error.__notes__[0] == f"Raised in Joining.{callback}() after step 3."


def test_a_group_that_waits_with_a_learning_rate_of_0_joins_and_resumes_exactly(ranks):
    whole = ranks(2).results(run_task, Joining("on_epoch", "lr"), SETTINGS)[0]
    biases = [whole.state(step)["model"]["bias"] for step in (1, 3, 4)]
    assert torch.equal(biases[0], biases[1]) and not torch.equal(biases[1], biases[2])
    for step in (2, 4):
        resumed = ranks(2).results(run_task, Joining("on_epoch", "lr"), SETTINGS, whole.saves[step])[0]
        assert same(resumed.state(6), whole.state(6))
