"""Schedulers that count epochs, and what the log says of the rates of a run."""

import math
from dataclasses import replace

import pytest
import torch
from torch.optim import lr_scheduler

from clustertrain.errors import JobError
from clustertrain.training.settings import LearningRate, SaveEvery, TrainSettings
from clustertrain.training.step import schedule
from clustertrain.training.step.schedule import Schedule
from training.ranks import ALONE
from training.tasks import Plain, run_task, same

STEPS = 60


class Scheduled(Plain):
    """With `make(optimizer, total_steps)` as its scheduler, which it keeps."""

    def __init__(self, make, n=60):
        super().__init__(n)
        self.make = make

    def scheduler(self, optimizer, total_steps):
        self.made = self.make(optimizer, total_steps)
        return self.made


def of_run(make, per=1, groups=1):
    return Schedule(
        Scheduled(make),
        [{"lr": 0.1, "betas": (0.9, 0.99)}] * groups,
        {"lr": 0.1, "betas": (0, 0)},
        STEPS,
        per,
    )


def in_order(optimizer, steps):
    parts = [
        lr_scheduler.LinearLR(optimizer, 0.1, 1, 10),
        lr_scheduler.CosineAnnealingLR(optimizer, steps - 10),
    ]
    return lr_scheduler.SequentialLR(optimizer, parts, [10])


def hard_restarts(optimizer, steps):
    """As transformers' cosine_with_hard_restarts."""
    return lr_scheduler.LambdaLR(optimizer, lambda n: 0.5 * (1 + math.cos(math.pi * (n * 6 / steps % 1))))


RIGHT = {
    "constant": lambda o, n: lr_scheduler.ConstantLR(o, 1),
    "to zero": lr_scheduler.CosineAnnealingLR,
    "linear": lambda o, n: lr_scheduler.LinearLR(o, 1, 0, n),
    "warm-up and cosine": in_order,
    "steps": lambda o, n: lr_scheduler.StepLR(o, n // 5),
    "one cycle": lambda o, n: lr_scheduler.OneCycleLR(o, 0.5, n),
    "cyclic": lambda o, n: lr_scheduler.CyclicLR(o, 0, 0.1, 3, cycle_momentum=False),
    "warm restarts": lambda o, n: lr_scheduler.CosineAnnealingWarmRestarts(o, 5),
    "warm restarts in order": lambda o, n: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 1), lr_scheduler.CosineAnnealingWarmRestarts(o, 5)], [9]
    ),
    "hard restarts": hard_restarts,
    "rounding": lambda o, n: lr_scheduler.LambdaLR(o, lambda i: 1 + (i % 2) * 1e-12),
    "needs gradients": lambda o, n: lr_scheduler.LambdaLR(
        o, lambda i: float(o.param_groups[0]["params"][0].grad)
    ),
    "three periods": lambda o, n: lr_scheduler.CosineAnnealingLR(o, n // 6, eta_min=0.01),
}
WRONG = {
    "exponential": (
        lambda o, n: lr_scheduler.ExponentialLR(o, 0.5),
        "falls from 0.1 to 9.54e-08 in step 21 of 60",
    ),
    "steps": (lambda o, n: lr_scheduler.StepLR(o, 2), "falls from 0.1 to 1e-08 in step 15 of 60"),
    "milestones after a warm-up": (
        lambda o, n: lr_scheduler.SequentialLR(
            o, [lr_scheduler.LinearLR(o, 0.1, 1, 4), lr_scheduler.StepLR(o, 1)], [4]
        ),
        "falls from 0.1 to 1e-08 in step 12 of 60",
    ),
    "cosine": (lambda o, n: lr_scheduler.CosineAnnealingLR(o, 6), "has 5 periods in the 60 steps of the run"),
    "half": (lambda o, n: lr_scheduler.CosineAnnealingLR(o, n // 2), "falls from 0.1 to 0 in step 31 of 60"),
}


@pytest.mark.parametrize("case", RIGHT)
def test_a_schedule_that_is_right_gets_no_warning(case):
    for per in (1, 10):
        assert of_run(RIGHT[case], per, groups=2).warning() == ""


@pytest.mark.parametrize("case", WRONG)
def test_a_schedule_in_epochs_is_named(case):
    make, words = WRONG[case]
    text = of_run(make).warning()
    assert text == (
        f"the task's scheduler, stepped after each optimizer step, {words}. "
        'If it counts epochs, return (scheduler, "epoch")'
    )
    assert of_run(lambda o, n: (make(o, n), "epoch"), 10).warning() == ""
    first = {"lr": 0.0}  # frozen until later
    of_second = Schedule(Scheduled(make), [first, {"lr": 0.1}], {"lr": 0.1}, STEPS, 1).warning()
    assert words.split(" in ")[0] in of_second


def test_a_schedule_in_steps_that_is_stepped_after_epochs_is_named():
    text = of_run(lambda o, n: (lr_scheduler.ExponentialLR(o, 1e-3), "epoch"), 10).warning()
    assert (
        "stepped after each epoch of 10 steps, falls from 0.1 to 1e-10 in step 31 of 60. If it counts steps"
        in text
    )


def test_the_rates_that_take_longer_are_not_shown(monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(schedule.time, "monotonic", lambda: next(clock) / 20)
    assert of_run(lambda o, n: lr_scheduler.StepLR(o, 10, 0.5)).text(lambda step: 1.0) == (
        "learning rate over the run: 0.1 in step 1, 0.05 in step 15, 0.025 in step 30; "
        "later ones would take longer to find"
    )


def halving(optimizer, total_steps):
    return lr_scheduler.StepLR(optimizer, 1, 0.5), "epoch"


def rates(outcome):
    return [record["lr"] for record in outcome.logs if record["kind"] == "train"]


def texts(outcome, kind):
    found = [record["text"] for record in outcome.logs if record["kind"] == kind]
    return [text for text in found if " is slow: " not in text]


def test_a_scheduler_is_stepped_after_each_epoch_also_by_a_resume(ranks):
    settings = TrainSettings(epochs=4, batch_size=10, log_every=1, save_every=SaveEvery(steps=1))
    two = ranks(2)
    whole = two.results(run_task, Scheduled(halving), settings)[0]
    by_epoch = [0.1] * 3 + [0.05] * 3 + [0.025] * 3 + [0.0125] * 3
    assert rates(whole) == by_epoch
    assert texts(whole, "note")[1] == (
        "learning rate over the run: 0.1 in step 1, 0.1 in step 3, 0.05 in step 6, 0.025 in step 9, "
        "0.0125 in step 12"
    )
    assert texts(whole, "warning") == []
    for step in (2, 3):
        resumed = two.results(run_task, Scheduled(halving), settings, whole.saves[step])[0]
        assert same(resumed.state(12), whole.state(12)), "bit-identical"
    longer = two.results(run_task, Scheduled(halving), replace(settings, epochs=5), whole.saves[6])[0]
    assert rates(longer) == [*by_epoch[6:], *[0.1 / 16] * 3]
    alone = run_task(ALONE, Scheduled(halving), settings, whole.saves[6])  # another global batch
    assert rates(alone) == [0.025] * 6 + [0.0125] * 6
    by_step = Scheduled(lambda o, n: halving(o, n)[0])
    assert rates(run_task(ALONE, by_step, replace(settings, epochs=3), whole.saves[6])) == [
        0.1 / 2**n for n in range(6, 12)
    ]
    back = run_task(ALONE, by_step, replace(settings, epochs=1))
    assert (
        rates(run_task(ALONE, Scheduled(halving), replace(settings, epochs=2), back.saves[6])) == [0.05] * 6
    )


def test_the_log_of_two_ranks_has_the_rates_with_the_warm_up(ranks):
    task = Scheduled(halve_in_two_steps)
    settings = TrainSettings(epochs=4, batch_size=10, lr=LearningRate(warmup_steps=4))
    first, second = ranks(2).results(run_task, task, settings)
    assert texts(first, "note")[1] == (
        "learning rate over the run: 0.025 in step 1, 0.00075 in step 3, 1e-06 in step 6, "
        "1e-09 in step 9, 1e-12 in step 12"
    )
    (text,) = texts(first, "warning")
    assert "falls from 0.1 to 1e-08 in step 8 of 12" in text
    assert texts(second, "note") == texts(second, "warning") == []
    run_task(ALONE, task, settings)
    assert isinstance(task.made.optimizer, torch.optim.SGD), "the task keeps its own scheduler"


def halve_in_two_steps(optimizer, total_steps):
    return lr_scheduler.ExponentialLR(optimizer, 0.1)


@pytest.mark.parametrize(
    ("made", "what"),
    [
        (lambda s: [s], "list"),
        (lambda s: {"scheduler": s, "interval": "epoch"}, "dict"),
        (lambda s: (s, "epochs"), "(StepLR, 'epochs')"),
        (lambda s: (s, 2), "(StepLR, 2)"),
        (lambda s: ("epoch", s), "(str, <"),
        (lambda s: (None, "epoch"), "(NoneType, 'epoch')"),
        (lambda s: (s, s, s), "tuple"),
    ],
)
def test_anything_else_is_refused(made, what):
    task = Scheduled(lambda optimizer, steps: made(lr_scheduler.StepLR(optimizer, 2)))
    with pytest.raises(JobError) as refused:
        run_task(ALONE, task, TrainSettings(steps=2, batch_size=4))
    first, second = str(refused.value).splitlines()
    assert first.startswith(f"Scheduled.scheduler() returned {what}")
    assert first.endswith(", not a torch.optim.lr_scheduler.LRScheduler.")
    assert second.startswith('Return the scheduler itself, or (scheduler, "epoch")')


def test_one_that_needs_a_metric_is_refused_also_by_epoch():
    task = Scheduled(lambda optimizer, steps: (lr_scheduler.ReduceLROnPlateau(optimizer), "epoch"))
    with pytest.raises(JobError, match="returned ReduceLROnPlateau, which needs a metric"):
        run_task(ALONE, task, TrainSettings(steps=2, batch_size=4))
