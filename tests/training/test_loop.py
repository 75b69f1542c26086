"""What the loop does between two steps: requests, saves, logs, losses that are not finite."""

import re
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from clustertrain.errors import JobError
from clustertrain.training.loop import train
from clustertrain.training.ranks.host import SaveProgress
from clustertrain.training.settings import Profile, SaveEvery, TrainSettings
from clustertrain.training.step.running_loss import NonFiniteLoss, NonFiniteWeights
from training.ranks import ALONE
from training.streamed import OnStream
from training.tasks import Classify, MemoryRun, Plain, plain, run_task

SETTINGS = TrainSettings(steps=8, batch_size=4)


def stop_at_call(calls, call=3):
    return calls >= call, False


@pytest.mark.parametrize(("world_size", "step"), [(1, 3), (2, 4), (3, 4)])
def test_a_stop_ends_all_ranks_at_the_same_step_with_a_checkpoint(ranks, world_size, step):
    outcomes = ranks(world_size).results(run_task, Plain(), SETTINGS, None, stop_at_call)
    assert {(o.result.step, o.result.finished) for o in outcomes} == {(step, False)}
    assert [(p.step, p.reason) for p in outcomes[0].progress] == [(step, "stop")]


def shapes(state):
    """Nested states with a shape in place of each tensor."""
    if isinstance(state, torch.Tensor):
        return state.shape
    if isinstance(state, dict):
        return {key: shapes(value) for key, value in state.items()}
    return [shapes(value) for value in state] if isinstance(state, list | tuple) else None


def test_buffers_for_saves_are_reserved_once_the_optimizer_has_its_state():
    outcome = run_task(ALONE, Classify(), replace(SETTINGS, steps=3))
    (reserved,) = outcome.reserved
    assert reserved["optimizer"]["state"], "before the first step there is none"
    saved = outcome.state(3)
    assert shapes(reserved) == shapes({key: saved[key] for key in reserved})


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        ({"save_every": SaveEvery(steps=3)}, [(3, "steps"), (6, "steps"), (8, "end")]),
        ({"save_every": SaveEvery(epochs=1), "batch_size": 9}, [(3, "epochs"), (6, "epochs"), (8, "end")]),
        (
            {"save_every": SaveEvery(minutes=1e-9)},
            [(s, "minutes") for s in (2, 3, 4, 5, 6, 7)] + [(8, "end")],
        ),
        ({}, [(8, "end")]),
    ],
)
def test_saves_come_due(ranks, every, expected):
    outcome = ranks(2).results(run_task, Plain(54), replace(SETTINGS, **every))[0]
    assert [(p.step, p.reason) for p in outcome.progress] == expected


def test_progress_and_records_contain_the_position(ranks):
    settings = replace(SETTINGS, log_every=5, steps=None, epochs=1)
    outcome = ranks(2).results(run_task, Plain(50), settings)[0]
    assert outcome.progress == [
        SaveProgress(step=7, epoch=1, samples_seen=50, world_size=2, metrics={}, reason="end")
    ]
    _, five, seven = outcome.logs  # after the learning rate
    assert (five["step"], five["epoch"], five["epoch_progress"], five["total_steps"]) == (5, 0, 0.8, 7)
    assert (seven["step"], seven["epoch"]) == (7, 1) and seven["samples_per_s"] > 0
    assert outcome.phases == [
        ("first_step", 0),
        ("step", 1),
        *[("usual_step", s) for s in range(2, 7)],
        ("step", 7),  # the next one would be the first of an epoch
        ("save", 7),
        ("step", 7),
        ("save", 7),  # until the last one is written
    ]
    assert outcome.result.metrics == {"loss": seven["loss"]}


class Watched(Plain):
    """Only its being there matters: it may take long after any step."""

    def on_step(self, step, metrics):
        pass


@pytest.mark.parametrize(
    ("task", "settings", "usual"),
    [
        (Plain(), {}, [2, 4, 5, 7]),  # after steps 3 and 6 it saves; step 8 ends the run
        (Plain(20), {}, [2, 4, 7]),  # and each fifth step ends an epoch
        (Watched(), {}, []),
        (Plain(), {"profile": Profile((2, 3))}, []),
        (OnStream(54), {}, []),
    ],
)
def test_only_a_step_as_those_before_it_is_a_usual_one(tmp_path, task, settings, usual):
    run = MemoryRun(0)
    run.trace = tmp_path / "trace.json"
    settings = replace(SETTINGS, save_every=SaveEvery(steps=3), **settings)
    train(task, settings, ALONE, run, {})
    last = {step: name for name, step in run.phases}  # the phase in which the step after it begins
    assert [step for step, name in last.items() if name == "usual_step"] == usual


def test_a_checkpoint_in_memory_is_no_part_of_a_usual_step():
    """The limit of a usual step is learnt from many without a copy, which may take longer."""
    run = MemoryRun(0)
    train(Plain(), replace(SETTINGS, save_every=SaveEvery(), memory_every=3), ALONE, run, {})
    assert run.phases[2:8] == [
        *[("usual_step", step) for step in (2, 3, 4)],
        ("save", 4),
        *[("usual_step", step) for step in (4, 5)],
    ]


@pytest.mark.parametrize(("every", "lacks", "steps"), [(0, "", []), (3, "room", []), (3, "", [4, 7])])
def test_checkpoints_in_memory_are_of_the_same_steps_on_all_nodes(every, lacks, steps):
    run = MemoryRun(0)
    run.lacks = lacks
    train(Plain(), replace(SETTINGS, save_every=SaveEvery(), memory_every=every), ALONE, run, {})
    assert [*run.in_memory][:3] == steps
    notes = [record["text"] for record in run.logs if "in the memory of the nodes" in record.get("text", "")]
    assert bool(notes) == bool(lacks)


class Cached(nn.Linear):
    """As a rotary embedding: the first pass makes a buffer, and a longer sequence enlarges it."""

    def forward(self, x):
        if len(getattr(self, "cache", ())) < len(x):
            self.register_buffer("cache", torch.ones(len(x)), persistent=False)
        return super().forward(x * self.cache[: len(x), None])


class WithCache(Plain):
    def __init__(self, has_one):
        super().__init__()
        self.has_one = has_one

    def model(self):
        model = Cached(4, 1)
        if self.has_one:
            model.register_buffer("cache", torch.ones(2), persistent=False)
        return model


@pytest.mark.parametrize("has_one", [False, True], ids=["new", "enlarged"])
def test_a_model_may_make_a_buffer_in_its_first_pass(ranks, has_one):
    settings = replace(SETTINGS, save_every=SaveEvery())
    first, second = ranks(2).results(run_task, WithCache(has_one), settings)
    assert first.result == second.result and first.result.finished


def poisoned(rank_info, settings):
    """The outcome on this rank of a NaN among the samples: what was raised, and the steps saved."""
    run = MemoryRun(rank_info.rank)
    task = Plain(bad=33)
    try:
        train(task, settings, rank_info, run, {})
    except NonFiniteLoss as error:
        assert "output was finite: look at the targets and the loss function.\n" in str(error)
        [(step, rank)] = re.findall(r"The loss of step (\d+) is nan on rank (\d);", str(error))
        return int(step), int(rank), sorted(run.saves)
    return None


def test_a_nan_on_one_rank_stops_all_and_nothing_is_saved_from_its_step_on(ranks):
    from clustertrain.training.data.sampling import epoch_order

    position = epoch_order(0, 0, 54).tolist().index(33)
    step, rank = position // 8 + 1, position % 8 % 2
    assert step > 2, "otherwise nothing could be saved before"
    settings = TrainSettings(epochs=1, batch_size=4, log_every=1000, save_every=SaveEvery(steps=1))
    assert ranks(2).results(poisoned, settings) == [(step, rank, list(range(1, step)))] * 2
    rare = replace(settings, save_every=SaveEvery(steps=step + 1))
    assert ranks(2).results(poisoned, rare) == [(step, rank, [])] * 2, "named exactly, found later"


class Exploding(Plain):
    """A finite loss whose gradient is not."""

    def loss(self, model, batch):
        return (model(batch[0]) * 0).abs().sqrt().mean()


def test_weights_that_overflowed_are_not_saved(ranks):
    errors = ranks(2).call(run_task, Exploding(), replace(SETTINGS, save_every=SaveEvery(steps=1)))
    assert {type(e) for e in errors} == {NonFiniteWeights}


def count_collectives(rank_info, steps):
    counts = {}
    names = ["all_reduce", "all_gather", "broadcast", "barrier", "all_gather_into_tensor"]
    originals = {name: getattr(dist, name) for name in names}

    def counting(name):
        def call(*args, **kwargs):
            counts[name] = counts.get(name, 0) + 1
            counts["waiting"] = counts.get("waiting", 0) + (not kwargs.get("async_op", False))
            return originals[name](*args, **kwargs)

        return call

    for name in names:
        setattr(dist, name, counting(name))
    try:
        settings = replace(
            SETTINGS, steps=steps, log_every=1000, memory_every=0
        )  # they agree on each of these
        run_task(rank_info, Plain(200), settings)
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)
    return counts


def test_a_step_waits_for_no_collective_but_ddp_s_own(ranks):
    few, many = (ranks(2).results(count_collectives, steps)[0] for steps in (5, 15))
    assert many["waiting"] == few["waiting"]
    assert many["all_reduce"] - few["all_reduce"] == 10, "the requests' own, which nobody waits for"
    assert ranks(1).results(count_collectives, 5) == [{}]


@pytest.mark.parametrize(
    ("task", "settings", "text"),
    [
        (plain(model=lambda: nn.LazyLinear(1)), {}, "a model whose weight has no shape yet"),
        (plain(model=lambda: "resnet"), {}, "returned str, not an nn.Module"),
        (plain(train_data=lambda data: iter([1])), {}, "lacks __len__ or __getitem__"),
        (plain(train_data=lambda data: []), {}, "0 samples"),
        (Plain(), {"precision": "fp16"}, "fp16 needs a GPU"),
        (Plain(), {"batch_size": 64}, "the largest batch_size that fits is 54"),
    ],
)
def test_inconsistent_settings_are_refused(task, settings, text):
    with pytest.raises(JobError, match=text) as error:
        run_task(ALONE, task, replace(SETTINGS, **settings))
    assert len(str(error.value).splitlines()) <= 3


class OfRank(Plain):
    def train_data(self, data):
        n = 40 + dist.get_rank()
        return TensorDataset(torch.zeros(n, 4), torch.zeros(n, 1))


class InDDP(Plain):
    def model(self):
        return nn.parallel.DistributedDataParallel(super().model())


@pytest.mark.parametrize(
    ("task", "text"),
    [(OfRank(), "[[40, 0], [41, 0]]"), (InDDP(), "a model in DistributedDataParallel")],
    ids=["data of other sizes", "a model in DDP"],
)
def test_what_only_several_ranks_show_is_refused_on_all(ranks, task, text):
    errors = ranks(2).call(run_task, task, SETTINGS)
    assert all(isinstance(error, JobError) and text in str(error) for error in errors)


def halved():
    """The weight, but not the bias, in another dtype."""
    model = nn.Linear(4, 1)
    model.weight = nn.Parameter(model.weight.detach().bfloat16())
    return model


@pytest.mark.parametrize(
    ("model", "difference"),
    [
        (lambda: nn.Linear(4, 2), r"size mismatch for weight: .*\[1, 4\].*\[2, 4\]"),
        (halved, r"weight \(1, 4\) is float32 in the checkpoint, and bfloat16 in the model"),
    ],
    ids=["shape", "dtype, which torch would convert"],
)
def test_a_checkpoint_of_another_model_is_refused_with_the_difference(model, difference):
    saved = run_task(ALONE, Plain(), replace(SETTINGS, steps=2)).saves[2]
    with pytest.raises(JobError) as caught:
        run_task(ALONE, plain(model=model), SETTINGS, saved)
    first, *_, last = str(caught.value).splitlines()
    assert first == "The checkpoint's weights do not fit Plain.model():"
    assert re.search(difference, str(caught.value))
    assert last == "Undo the change, or start over with --fresh, which keeps this run."
