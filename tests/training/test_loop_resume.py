"""A resumed run ends with the bits of an uninterrupted one."""

import weakref
from collections import Counter
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR, LinearLR, MultiStepLR, SequentialLR

from clustertrain.training.data.sampling import epoch_order
from clustertrain.training.loop import train
from clustertrain.training.settings import LearningRate, SaveEvery, TrainSettings
from training.ranks import ALONE
from training.tasks import Classify, MemoryRun, Net, run_task, same

SETTINGS = TrainSettings(
    epochs=2,
    batch_size=4,
    seed=3,
    save_every=SaveEvery(steps=1),
    clip_norm=1.0,
    lr=LearningRate(warmup_steps=4),
)


@pytest.mark.parametrize(
    ("world_size", "accumulate", "processes", "limit"),
    [(1, 1, 0, None), (2, 1, 2, None), (2, 2, 0, None), (2, 1, 0, 3), (3, 1, 0, None), (3, 2, 0, None)],
)
def test_resume_in_mid_epoch_is_bit_identical(ranks, world_size, accumulate, processes, limit):
    settings = replace(SETTINGS, accumulate=accumulate, loader_workers=processes, limit_batches=limit)
    group = ranks(world_size)
    whole = group.results(run_task, Classify(), replace(settings, loader_workers=0))
    middle = 2
    assert whole[0].state(middle)["position"]["offset"] > 0, "the middle of an epoch"
    resumed = group.results(run_task, Classify(), settings, whole[0].saves[middle])
    end = whole[0].result.step
    assert resumed[0].result == whole[0].result and end > middle
    assert same(resumed[0].state(end), whole[0].state(end)), (
        "weights, optimizer, scheduler, random states, position"
    )
    for before, after in zip(whole, resumed, strict=True):
        assert before.ids[middle * accumulate :] == after.ids


class WarmedUp(Classify):
    """As in many recipes: a warm-up, and then milestones, which torch counts in a Counter."""

    def scheduler(self, optimizer, total_steps):
        warm_up, rest = LinearLR(optimizer, total_iters=8), MultiStepLR(optimizer, [4, 9])
        return SequentialLR(optimizer, [warm_up, rest], milestones=[8])


class OfNumpy(Classify):
    """Its learning rates are numbers of numpy, of 32 bits."""

    def optimizer(self, model):
        return SGD(model.parameters(), lr=np.float32(0.1), momentum=0.9)

    def scheduler(self, optimizer, total_steps):
        return LambdaLR(optimizer, lambda step: np.cos(step / total_steps, dtype=np.float32))


@pytest.mark.parametrize("task", [WarmedUp, OfNumpy])
def test_a_resume_in_a_warm_up_continues_the_schedule(task):
    settings = replace(SETTINGS, lr=LearningRate(warmup_steps=7))
    whole = run_task(ALONE, task(), settings)
    resumed = run_task(ALONE, task(), settings, whole.saves[5])
    end = whole.result.step
    assert end > 8 + 9 and same(resumed.state(end), whole.state(end))


class Renaming(Net):
    """As heads of Mask2Former: a state without a version has old names."""

    _version = 2

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *args):
        if local_metadata.get("version", 1) < 2:
            state_dict["old.weight"] = state_dict.pop("head.weight")
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)


class Versioned(Classify):
    def model(self):
        return Renaming()


def test_a_resume_knows_the_versions_of_the_modules():
    whole = run_task(ALONE, Versioned(), SETTINGS)
    assert run_task(ALONE, Versioned(), SETTINGS, whole.saves[5]).result == whole.result


class WatchedRun(MemoryRun):
    """Counts, after each step, how many tensors of the model in the checkpoint are still in memory."""

    left: ClassVar[list[int]] = []

    def restore(self):
        state = super().restore()
        self.tensors = [weakref.ref(tensor) for tensor in state["model"].values()]
        return state

    def phase(self, name, step):
        super().phase(name, step)
        if name in ("step", "usual_step"):
            self.left.append(sum(tensor() is not None for tensor in self.tensors))


@pytest.mark.slow
def test_a_checkpoint_leaves_the_memory_when_it_is_loaded():
    saved = run_task(ALONE, Classify(), SETTINGS).saves[2]
    run = WatchedRun(0, saved)
    train(Classify(), SETTINGS, ALONE, run, {})
    assert len(run.left) > 2 and set(run.left) == {0}


@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 3), (1, 3)])
def test_another_number_of_ranks_continues_the_same_order(ranks, before, after):
    settings = replace(SETTINGS, epochs=1, batch_size=None, global_batch_size=12)
    first = ranks(before).results(run_task, Classify(), settings)
    rest = ranks(after).results(run_task, Classify(), settings, first[0].saves[3])
    seen = Counter(i for rank in first for ids in rank.ids[:3] for i in ids)
    seen.update(i for rank in rest for ids in rank.ids for i in ids)
    assert set(seen.values()) == {1}, "no sample twice"
    assert 54 - len(seen) < after, "and all of them but a tail too short to deal out"
    notes = rest[0].logged("note", "text")
    assert ["learning rate: " in note for note in notes] == [True, False] and "not bit-identical" in notes[1]


class Weighted(Classify):
    """Classes 0, 1 and 2 by 0 : 1 : 4, as an array of numpy."""

    def sample_weights(self, dataset):
        return np.array([0.0, 1.0, 4.0], dtype=np.float32)[dataset.y]


def test_weighted_samples_are_the_same_after_a_resume_and_with_other_ranks(ranks):
    settings = replace(SETTINGS, batch_size=None, global_batch_size=12, loader_workers=2)
    whole = ranks(2).results(run_task, Weighted(), settings)
    weights = torch.as_tensor(Weighted().sample_weights(Weighted().train_data({})), dtype=torch.float64)
    drawn = epoch_order(settings.seed, 0, len(weights), weights.cumsum(0)).tolist()
    assert len({*drawn}) < len(drawn), "with replacement"
    for rank, outcome in enumerate(whole):
        ids = [i for ids in outcome.ids[:4] for i in ids]
        assert ids == drawn[rank:48:2]
    resumed = ranks(2).results(run_task, Weighted(), settings, whole[0].saves[2])
    assert same(resumed[0].state(8), whole[0].state(8))
    assert [each.ids for each in resumed] == [each.ids[2:] for each in whole]
    of_three = ranks(3).results(run_task, Weighted(), settings, whole[0].saves[2])
    for rank, outcome in enumerate(of_three):
        assert [i for ids in outcome.ids[:2] for i in ids] == drawn[24 + rank : 48 : 3]
