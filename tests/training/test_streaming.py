"""Training on an IterableDataset: split among ranks, resumed exactly, its end known to all ranks."""

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
import webdataset

from clustertrain.errors import DataError, JobError
from clustertrain.training.data.streaming import digest_of
from clustertrain.training.rehearsal import rehearse
from clustertrain.training.settings import EvalEvery, SaveEvery, TrainSettings
from training.ranks import ALONE, Ranks
from training.streamed import OnStream
from training.tasks import run_task, same

SETTINGS = TrainSettings(steps=12, batch_size=3, seed=3, save_every=SaveEvery(steps=1))
CPU = torch.device("cpu")


def flat(lists):
    return [i for ids in lists for i in ids]


@pytest.mark.parametrize(("world_size", "processes", "accumulate"), [(1, 1, 1), (2, 0, 2)])
def test_a_resume_is_bit_identical(ranks, world_size, processes, accumulate):
    settings = replace(SETTINGS, accumulate=accumulate)
    group = ranks(world_size)
    whole = group.results(run_task, OnStream(40), settings)
    middle = 5
    assert whole[0].state(middle)["position"]["offset"] > 0, "the middle of an epoch"
    resumed = group.results(
        run_task, OnStream(40), replace(settings, loader_workers=processes), whole[0].saves[middle]
    )
    assert same(resumed[0].state(12), whole[0].state(12))
    for before, after in zip(whole, resumed, strict=True):
        assert before.ids[middle * accumulate :] == after.ids


def test_ranks_take_each_sample_once_and_the_rest_of_a_step_is_left_out(ranks):
    outcomes = ranks(2).results(run_task, OnStream(40), SETTINGS)
    for epoch in range(2):
        seen = Counter(i for rank in outcomes for ids in rank.ids[6 * epoch : 6 * epoch + 6] for i in ids)
        assert set(seen.values()) == {1} and len(seen) == 36
    positions = [outcomes[0].state(step)["position"] for step in (5, 6, 7)]
    assert [(p["epoch"], p["offset"]) for p in positions] == [(0, 30), (1, 0), (1, 6)]
    notes = outcomes[0].logged("note", "text")
    assert (
        "epoch 0 of OnStream.train_data() ended after 40 samples; the last 4 are fewer than a step"
        in notes[1]
    )


def test_another_number_of_ranks_continues_the_stream(ranks):
    settings = replace(SETTINGS, steps=None, epochs=1, batch_size=None, global_batch_size=6)
    first = ranks(2).results(run_task, OnStream(40, 40), settings)
    rest = run_task(ALONE, OnStream(40, 40), settings, first[0].saves[3])
    seen = flat(first[0].ids[:3]) + flat(first[1].ids[:3]) + flat(rest.ids)
    assert sorted(seen) == list(range(40)) and rest.result.epoch == 1


@pytest.mark.parametrize("processes", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_stream_that_is_shorter_than_its_length_ends_its_epochs_early(processes):
    settings = replace(SETTINGS, steps=None, epochs=2, loader_workers=processes)
    outcome = run_task(ALONE, OnStream(20, 30), settings)
    assert outcome.result.epoch == 2 and outcome.result.step == 12
    resumed = run_task(ALONE, OnStream(20, 30), settings, outcome.saves[8])
    assert same(resumed.state(12), outcome.state(12)), "the plan of the scheduler is that of the first start"
    notes = outcome.logged("note", "text")
    assert sum("ended after 20 samples, although its length is 30" in note for note in notes) == 2
    assert any("one loader process reads it, not 2" in note for note in notes) == (processes == 2)
    assert outcome.ids[:6] != outcome.ids[6:], "each epoch has an order of its own"


def test_an_evaluation_counts_each_sample_of_a_stream_once(ranks):
    settings = replace(SETTINGS, steps=4, eval_every=EvalEvery(steps=2), save_every=SaveEvery())
    one = run_task(ALONE, OnStream(40, evaluated=11), replace(settings, batch_size=6))
    two = ranks(2).results(run_task, OnStream(40, evaluated=11), settings)
    assert two[0].result.metrics == pytest.approx(one.result.metrics)
    assert rehearse(OnStream(40, evaluated=11), settings, CPU, {}) == ("loss",)


class Tars(torch.utils.data.IterableDataset):
    """As in docs/guides/data.md."""

    def __init__(self, shards):
        self.shards = shards

    def __iter__(self):
        shards = random.sample(self.shards, len(self.shards))
        samples = webdataset.WebDataset(shards, shardshuffle=False, nodesplitter=None, workersplitter=None)
        for numbers, i in samples.shuffle(5, rng=random).decode().to_tuple("json", "cls"):
            x = torch.tensor(numbers, dtype=torch.float32)
            yield x + 0.1 * torch.randn(4), x.sum(0, keepdim=True), i


class OnTars(OnStream):
    def train_data(self, data):
        return Tars(self.args[0])


@pytest.mark.filterwarnings("ignore:unclosed file", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("processes", [0, 1])
def test_tar_shards_are_read_by_webdataset_and_resumed_exactly(ranks, tmp_path, processes):
    shards = [str(tmp_path / f"{number}.tar") for number in range(4)]
    for number, shard in enumerate(shards):
        with webdataset.TarWriter(shard) as writer:
            for i in range(10 * number, 10 * number + 10):
                writer.write({"__key__": f"{i:04d}", "json": [i % 7, 1, 0, -1], "cls": i})
    settings = replace(SETTINGS, loader_workers=processes)
    whole = ranks(2).results(run_task, OnTars(shards), settings)
    resumed = ranks(2).results(run_task, OnTars(shards), settings, whole[0].saves[7])
    assert same(resumed[0].state(12), whole[0].state(12))
    first_pass = [i for rank in whole for i in flat(rank.ids[:6])]
    assert len({*first_pass}) == len(first_pass) == 36


@pytest.fixture
def two_ranks(tmp_path):
    """A group of their own, because a rank that fails leaves the other one in a collective."""
    group = Ranks(2, tmp_path)
    yield group
    group.close()


@pytest.mark.slow
def test_a_rank_whose_stream_ends_early_is_an_error_and_no_hang(two_ranks):
    settings = replace(SETTINGS, steps=None, epochs=2)
    answers = two_ranks.call(run_task, OnStream(40, 40, ended={1: 14}), settings)
    for answer in answers:
        assert isinstance(answer, DataError) and "the stream of one rank ended before" in str(answer)
    answers = two_ranks.call(run_task, OnStream(40, 40, ended={1: 0}), settings)
    assert isinstance(answers[1], DataError) and "yielded no sample on rank 1" in str(answers[1])


class Split(OnStream):
    """Splits itself by rank, which would train each sample half as often."""

    def train_data(self, data):
        dataset = super().train_data(data)
        rank = torch.distributed.get_rank()
        return _Every(dataset, rank)


class _Every(torch.utils.data.IterableDataset):
    def __init__(self, dataset, rank):
        self.dataset, self.rank = dataset, rank

    def __iter__(self):
        yield from list(self.dataset)[self.rank :: 2]


@pytest.mark.slow
def test_a_stream_that_splits_itself_by_rank_is_refused(two_ranks):
    answers = two_ranks.call(run_task, Split(40), SETTINGS)
    assert all(isinstance(answer, DataError) for answer in answers)
    assert "yields other samples on other ranks: they differ at sample 0 of epoch 0" in str(answers[0])


class Chained(OnStream):
    def train_data(self, data):
        return super().train_data(data) + super().train_data(data)


def test_objects_do_not_count_in_the_comparison_of_streams():
    """As bytes they are addresses, which differ between ranks."""
    one, other = (np.array([f"{n} {n}" for n in range(first, first + 2)], dtype=object) for first in (0, 2))
    assert one.tobytes() != other.tobytes() and digest_of([one, 1]) == digest_of([other, 1])
    assert digest_of([np.zeros(2), 1]) != digest_of([np.ones(2), 1])


def test_what_cannot_be_trained_is_refused_before_the_first_step():
    epochs = replace(SETTINGS, steps=None, epochs=1)
    with pytest.raises(JobError, match=r"train\.epochs is 1, but Chained\.train_data\(\) returned a stream"):
        rehearse(Chained(40), epochs, CPU, {})
    with pytest.raises(JobError, match=r"train\.epochs is 1, but OnStream\.train_data\(\) returned a stream"):
        rehearse(OnStream(40), epochs, CPU, {})
    with pytest.raises(JobError, match="ended after 0 samples; 3 are needed"):
        rehearse(OnStream(0), SETTINGS, CPU, {})
    with pytest.raises(DataError, match="ended after 2 samples; a step takes 3, so an epoch has no step"):
        run_task(ALONE, OnStream(2), SETTINGS)
