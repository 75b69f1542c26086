"""The optimizer and the schedule of the learning rate, in steps or in epochs."""

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
from training.tasks import Plain, plain, run_task, same

SETTINGS = TrainSettings(steps=6, batch_size=4, log_every=1)


class Halving(Plain):
    def scheduler(self, optimizer, total_steps):
        return lr_scheduler.StepLR(optimizer, 2, 0.5)


class Counting(torch.optim.SGD):
    """Keeps its count in the groups, as schedule-free optimizers and Prodigy do."""

    def __init__(self, params, lr):
        super().__init__(params, lr)
        self.param_groups[0] |= {"count": 0, "power": 1}

    def step(self, closure=None):
        (group,) = self.param_groups
        group["count"] += 1
        group["weight_decay"] = 0.1 / group["count"] ** group["power"]
        return super().step(closure)


class Counted(Plain):
    def optimizer(self, model):
        return Counting(model.parameters(), self.lr)


def test_more_steps_continue_what_an_optimizer_keeps_in_its_groups():
    settings = replace(SETTINGS, save_every=SaveEvery(steps=1))
    whole = run_task(ALONE, Counted(), settings)
    short = run_task(ALONE, Counted(), replace(settings, steps=3))
    assert same(run_task(ALONE, Counted(), settings, short.saves[3]).weights(), whole.weights())
    slower = run_task(ALONE, Counted(lr=0.01), replace(settings, job_sha256="other"), short.saves[3])
    (group,) = slower.state(6)["optimizer"]["param_groups"]
    assert (group["lr"], group["count"]) == (0.01, 6), "a setting that the job has changed is the job's"


def one_cycle(optimizer, total_steps):
    """Replaces the learning rate of the optimizer."""
    return lr_scheduler.OneCycleLR(optimizer, max_lr=0.5, total_steps=total_steps + 1)


def test_the_log_shows_the_arithmetic_of_the_learning_rate(ranks):
    linear = replace(SETTINGS, lr=LearningRate("linear", warmup_steps=4), accumulate=2)
    of_ranks = ranks(2).results(run_task, Plain(), linear)
    assert of_ranks[0].logged("note", "text") == [
        "learning rate: 0.1 × 16 / 4 = 0.4 (linear; global batch: "
        "batch_size 4 × workers 2 × accumulate 2 = 16, base 4)\n"
        "warm-up: 4 of 6 steps; step 1 has 0.4 × 1 / 4 = 0.1"
    ]
    assert of_ranks[0].lrs[0] == pytest.approx(0.1) and of_ranks[0].lrs[-1] == pytest.approx(0.4)
    assert of_ranks[1].logged("note", "text") == [], "rank 0 writes the log"
    sqrt = replace(SETTINGS, lr=LearningRate("sqrt", 1))
    text, _ = run_task(ALONE, plain(scheduler=one_cycle), sqrt).logged("note", "text")
    assert text.splitlines() == [
        "learning rate: 0.1 × √(4 / 1) = 0.2 (sqrt; global batch: "
        "batch_size 4 × workers 1 × accumulate 1 = 4, base 1)",
        "the task's scheduler starts with 0.02, not with 0.2",
    ]
    long = replace(SETTINGS, lr=LearningRate(warmup_steps=10))
    (text,) = run_task(ALONE, Plain(), long).logged("note", "text")
    assert text.splitlines() == [
        "learning rate: 0.1 × 1 = 0.1 (none; global batch: batch_size 4 × workers 1 × accumulate 1 = 4)",
        "warm-up: 10 of 6 steps; step 1 has 0.1 × 1 / 10 = 0.01; the run ends before the warm-up",
    ]
    (text,) = ranks(2).results(run_task, Plain(), replace(SETTINGS, accumulate=3))[0].logged("note", "text")
    assert text == (
        "learning rate: 0.1 × 1 = 0.1 (none; global batch: batch_size 4 × workers 2 × accumulate 3 = 24)"
    )


def test_a_resume_shows_the_learning_rate_of_its_first_step():
    settings = replace(SETTINGS, save_every=SaveEvery(steps=2), lr=LearningRate(warmup_steps=5))
    task = plain(scheduler=one_cycle)
    first = run_task(ALONE, task, settings)
    (text,) = run_task(ALONE, task, settings, first.saves[2]).logged("note", "text")
    assert text.splitlines()[1:] == [f"step 3 has {first.lrs[2]:g}"]


def test_warmup_multiplies_and_leaves_the_scheduler_alone():
    outcome = run_task(ALONE, Halving(), replace(SETTINGS, lr=LearningRate(warmup_steps=4)))
    assert outcome.lrs == pytest.approx(
        [0.1 * 1 / 4, 0.1 * 2 / 4, 0.05 * 3 / 4, 0.05, 0.025, 0.025], rel=1e-12
    )
    assert outcome.state(6)["optimizer"]["param_groups"][0]["lr"] == 0.1 / 8


def test_warmup_changes_the_weights():
    one = replace(SETTINGS, steps=1, seed=1)
    warmed_up = replace(one, lr=LearningRate(warmup_steps=4))
    runs = (Plain(), one), (Plain(), warmed_up), (Plain(lr=0.0), one)
    full, warm, still = (run_task(ALONE, *run).weights()["weight"] for run in runs)
    assert torch.allclose(4 * (warm - still), full - still, atol=1e-6) and not torch.equal(full, still)


def test_another_global_batch_on_resume_takes_the_learning_rate_along(ranks):
    settings = replace(SETTINGS, lr=LearningRate("linear"), save_every=SaveEvery(steps=2))
    first = run_task(ALONE, Halving(), settings)
    rest = ranks(2).results(run_task, Halving(), settings, first.saves[2])[0]
    assert first.lrs[2:] == [0.05, 0.05, 0.025, 0.025]
    assert rest.lrs == [0.1, 0.1, 0.05, 0.05]


def chained(optimizer, total_steps):
    parts = [
        lr_scheduler.LinearLR(optimizer, total_iters=total_steps),
        lr_scheduler.StepLR(optimizer, 2, 0.5),
    ]
    return lr_scheduler.ChainedScheduler(parts)


@pytest.mark.parametrize("scheduler", [lr_scheduler.CosineAnnealingLR, chained])
def test_a_longer_run_follows_its_own_schedule_after_the_resume(scheduler):
    task = plain(scheduler=scheduler)
    short = run_task(ALONE, task, replace(SETTINGS, steps=4))
    rest = run_task(ALONE, task, replace(SETTINGS, steps=8), short.saves[4])
    whole = run_task(ALONE, task, replace(SETTINGS, steps=8))
    assert rest.lrs == pytest.approx(whole.lrs[4:], rel=1e-12)
    assert rest.lrs[0] != short.lrs[-1]


def test_accumulation_and_ranks_equal_one_larger_batch(ranks):
    settings = TrainSettings(epochs=2, global_batch_size=12)
    expected = run_task(ALONE, Plain(51), settings)  # a tail of 3: 12 × 4 + 3
    for world_size, accumulate in [(1, 3), (2, 2), (3, 1), (3, 2)]:
        outcome = ranks(world_size).results(run_task, Plain(51), replace(settings, accumulate=accumulate))[0]
        assert outcome.result.step == expected.result.step
        if world_size == 2:  # two ranks leave one sample of each epoch out
            continue
        for name, value in expected.weights().items():
            assert torch.allclose(outcome.weights()[name], value, rtol=1e-4, atol=1e-6), (
                world_size,
                accumulate,
            )


def test_clipping_bounds_the_step_and_logs_the_norm_before(ranks):
    outcome = ranks(2).results(run_task, Plain(lr=1.0), replace(SETTINGS, steps=1, clip_norm=0.01))[0]
    still = ranks(2).results(run_task, Plain(lr=0.0), replace(SETTINGS, steps=1))[0]
    moved = math.sqrt(
        sum(float((outcome.weights()[k] - v).square().sum()) for k, v in still.weights().items())
    )
    assert moved == pytest.approx(0.01, rel=1e-3)
    assert outcome.logged("train", "grad_norm")[0] > 0.01


class OnlyTheHead(Plain):
    """Optimizes one layer, and has not frozen the other."""

    def model(self):
        return torch.nn.Sequential(torch.nn.Linear(4, 4), super().model())

    def optimizer(self, model):
        return torch.optim.SGD(model[1].parameters(), lr=0.1)


@pytest.mark.parametrize("world_size", [1, 2])
def test_gradients_that_the_optimizer_does_not_use_do_not_add_up(ranks, world_size):
    settings = replace(SETTINGS, clip_norm=0.01, save_every=SaveEvery(steps=1))
    group = ranks(world_size)
    whole = group.results(run_task, OnlyTheHead(), settings)[0]
    resumed = group.results(run_task, OnlyTheHead(), settings, whole.saves[3])[0]
    assert same(resumed.state(6), whole.state(6)), "bit-identical"


class Momentum(Plain):
    """The optimizer has a state and options that a resume must load, or replace."""

    def __init__(self, lr: float, kind: str = "SGD", groups: int = 1, schedule: bool = False) -> None:
        super().__init__(lr=lr)
        self.kind, self.groups, self.schedule = kind, groups, schedule

    def optimizer(self, model):
        groups = [list(model.parameters())] if self.groups == 1 else [[p] for p in model.parameters()]
        options = {"momentum": 0.9} if self.kind == "SGD" else {}
        make = getattr(torch.optim, self.kind)
        return make([{"params": group} for group in groups], lr=self.lr, **options)

    def scheduler(self, optimizer, total_steps):
        return lr_scheduler.StepLR(optimizer, 2, 0.5) if self.schedule else None


SAVED = replace(SETTINGS, save_every=SaveEvery(steps=2), job_sha256="a")


def test_a_changed_job_resumes_with_its_own_learning_rate_and_the_saved_momentum():
    first = run_task(ALONE, Momentum(0.1), SAVED)
    same = run_task(ALONE, Momentum(0.01), SAVED, first.saves[2])
    assert same.lrs == [0.1] * 4  # the checkpoint has the settings of an unchanged job
    changed = run_task(ALONE, Momentum(0.01), replace(SAVED, job_sha256="b"), first.saves[2])
    assert changed.lrs == [0.01] * 4
    resumed = run_task(ALONE, Momentum(0.0), replace(SAVED, steps=3, job_sha256="b"), first.saves[2])
    momentum = [each["momentum_buffer"] for each in resumed.state(3)["optimizer"]["state"].values()]
    fresh = run_task(ALONE, Momentum(0.0), replace(SAVED, steps=1, save_every=SaveEvery(steps=1)))
    begun = [each["momentum_buffer"] for each in fresh.state(1)["optimizer"]["state"].values()]
    assert not any(map(torch.equal, momentum, begun))


def test_a_schedule_that_a_changed_job_adds_starts_at_the_saved_step():
    changed = replace(SAVED, job_sha256="b")
    first = run_task(ALONE, Momentum(0.1), SAVED)
    added = run_task(ALONE, Momentum(0.1, schedule=True), changed, first.saves[2])
    assert added.lrs == [0.05, 0.05, 0.025, 0.025]
    halved = run_task(ALONE, Momentum(0.1, schedule=True), SAVED)
    left_out = run_task(ALONE, Momentum(0.1), changed, halved.saves[2])
    assert left_out.lrs == [0.1] * 4


def test_the_state_of_another_optimizer_is_refused():
    changed = replace(SAVED, job_sha256="b")
    saves = run_task(ALONE, Momentum(0.1), SAVED).saves
    with pytest.raises(JobError, match=r"is of SGD, and Task.optimizer\(\) returned Adam\.\n.*--fresh"):
        run_task(ALONE, Momentum(0.1, kind="Adam"), changed, saves[2])
    with pytest.raises(JobError, match=r"does not fit .*different number of parameter groups"):
        run_task(ALONE, Momentum(0.1, groups=2), changed, saves[2])


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


def hard_restarts(optimizer, steps):
    """As transformers' cosine_with_hard_restarts."""
    return lr_scheduler.LambdaLR(optimizer, lambda n: 0.5 * (1 + math.cos(math.pi * (n * 6 / steps % 1))))


RIGHT = {
    "to zero": lr_scheduler.CosineAnnealingLR,
    "cyclic": lambda o, n: lr_scheduler.CyclicLR(o, 0, 0.1, 3, cycle_momentum=False),
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
    "steps": (lambda o, n: lr_scheduler.StepLR(o, 2), "falls from 0.1 to 1e-08 in step 15 of 60"),
    "milestones after a warm-up": (
        lambda o, n: lr_scheduler.SequentialLR(
            o, [lr_scheduler.LinearLR(o, 0.1, 1, 4), lr_scheduler.StepLR(o, 1)], [4]
        ),
        "falls from 0.1 to 1e-08 in step 12 of 60",
    ),
    "cosine": (lambda o, n: lr_scheduler.CosineAnnealingLR(o, 6), "has 5 periods in the 60 steps of the run"),
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


def test_a_scheduler_is_stepped_after_each_epoch_also_by_a_resume(ranks):
    settings = TrainSettings(epochs=4, batch_size=10, log_every=1, save_every=SaveEvery(steps=1))
    two = ranks(2)
    whole = two.results(run_task, Scheduled(halving), settings)[0]
    by_epoch = [0.1] * 3 + [0.05] * 3 + [0.025] * 3 + [0.0125] * 3
    assert whole.lrs == by_epoch
    assert whole.logged("note", "text")[1] == (
        "learning rate over the run: 0.1 in step 1, 0.1 in step 3, 0.05 in step 6, 0.025 in step 9, "
        "0.0125 in step 12"
    )
    assert [text for text in whole.logged("warning", "text") if " is slow: " not in text] == []
    for step in (2, 3):
        resumed = two.results(run_task, Scheduled(halving), settings, whole.saves[step])[0]
        assert same(resumed.state(12), whole.state(12)), "bit-identical"
    longer = two.results(run_task, Scheduled(halving), replace(settings, epochs=5), whole.saves[6])[0]
    assert longer.lrs == [*by_epoch[6:], *[0.1 / 16] * 3]
    alone = run_task(ALONE, Scheduled(halving), settings, whole.saves[6])  # another global batch
    assert alone.lrs == [0.025] * 6 + [0.0125] * 6
    by_step = Scheduled(lambda o, n: halving(o, n)[0])
    assert run_task(ALONE, by_step, replace(settings, epochs=3), whole.saves[6]).lrs == [
        0.1 / 2**n for n in range(6, 12)
    ]
    back = run_task(ALONE, by_step, replace(settings, epochs=1))
    assert run_task(ALONE, Scheduled(halving), replace(settings, epochs=2), back.saves[6]).lrs == [0.05] * 6


@pytest.mark.parametrize(
    ("made", "what"),
    [
        (lambda s: [s], "list"),
        (lambda s: (s, "epochs"), "(StepLR, 'epochs')"),
        (lambda s: (None, "epoch"), "(NoneType, 'epoch')"),
    ],
)
def test_what_is_no_scheduler_is_refused(made, what):
    task = Scheduled(lambda optimizer, steps: made(lr_scheduler.StepLR(optimizer, 2)))
    with pytest.raises(JobError) as refused:
        run_task(ALONE, task, TrainSettings(steps=2, batch_size=4))
    first, second, third = str(refused.value).splitlines()
    assert first.startswith(f"Scheduled.scheduler() returned {what}")
    assert first.endswith(", not a torch.optim.lr_scheduler.LRScheduler.")
    assert second.startswith('Return the scheduler itself, or (scheduler, "epoch")')
    assert third.startswith("Scheduled.scheduler() is at ")
