"""Training on a stream that splits itself by rank: each rank's state is in the checkpoint."""

import random
from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch.utils.data import IterableDataset

from clustertrain.errors import DataError, JobError
from clustertrain.training.settings import EvalEvery, SaveEvery, TrainSettings
from training.ranks import ALONE
from training.streamed import Regression
from training.tasks import run_task, same

SETTINGS = TrainSettings(steps=16, batch_size=3, seed=3, save_every=SaveEvery(steps=1))


def rank_and_ranks():
    group = torch.distributed
    return (group.get_rank(), group.get_world_size()) if group.is_initialized() else (0, 1)


def sample_of(i):
    x = torch.tensor([i % 7, 1.0, 0.0, -1.0])
    return x + 0.1 * random.random() + 0.1 * torch.randn(4), x.sum(0, keepdim=True), i


class Parts(IterableDataset):
    """Every rank's numbers below n, in an order of each pass."""

    def __init__(self, n):
        rank, ranks = rank_and_ranks()
        self.own = [*range(rank, n, ranks)]
        self.at, self.passes = 0, 0

    def __len__(self):
        return len(self.own)

    def __iter__(self):
        order = random.Random(self.passes).sample(self.own, len(self.own))
        while self.at < len(order):
            self.at += 1
            yield sample_of(order[self.at - 1])
        self.at, self.passes = 0, self.passes + 1

    def state_dict(self):
        return {"at": torch.tensor(self.at), "passes": self.passes}

    def load_state_dict(self, state):
        self.at, self.passes = int(state["at"]), state["passes"]


class Nodes(Parts):
    """The same with torchdata's nodes."""

    def __init__(self, n):
        from torchdata import nodes

        super().__init__(n)
        self.loader = nodes.Loader(nodes.Mapper(nodes.SamplerWrapper(self.own), sample_of))

    def __iter__(self):
        return iter(self.loader)

    def state_dict(self):
        return self.loader.state_dict()

    def load_state_dict(self, state):
        self.loader.load_state_dict(state)


class OnParts(Regression):
    def __init__(self, make, *args, evaluated=0):
        super().__init__()
        self.make, self.args, self.evaluated = make, args, evaluated

    def train_data(self, data):
        return self.make(*self.args)

    def eval_data(self, data):
        return self.make(self.evaluated) if self.evaluated else None


def of_litdata(folder):
    """litdata's own stream, which finds out its rank by itself."""
    from litdata import StreamingDataset

    return StreamingDataset(folder, shuffle=True, drop_last=True, transform=lambda i: sample_of(int(i)))


@pytest.fixture(scope="module")
def chunks(tmp_path_factory):
    """41 numbers in chunks of litdata."""
    from litdata.streaming.writer import BinaryWriter

    folder = tmp_path_factory.mktemp("chunks")
    writer = BinaryWriter(str(folder), chunk_size=5)
    for i in range(41):
        writer[i] = i
    writer.done()
    writer.merge()
    return str(folder)


@pytest.fixture(params=["own", "torchdata", "litdata"])
def task(request):
    if request.param == "litdata":
        return OnParts(of_litdata, request.getfixturevalue("chunks"))
    return OnParts({"own": Parts, "torchdata": Nodes}[request.param], 41)


@pytest.mark.parametrize(
    ("world_size", "accumulate", "strategy"), [(1, 1, "ddp"), (2, 2, "ddp"), (2, 1, "fsdp")]
)
def test_a_resume_is_bit_identical(ranks, task, world_size, accumulate, strategy):
    settings = replace(SETTINGS, accumulate=accumulate, strategy=strategy)
    group = ranks(world_size)
    whole = group.results(run_task, task, settings)
    for middle in (3, 13, 14):  # with one rank in the first pass and in the second
        resumed = group.results(run_task, task, settings, whole[0].saves[middle])
        assert same(resumed[0].state(16)["model"], whole[0].state(16)["model"])
        for before, after in zip(whole, resumed, strict=True):
            assert before.ids[-len(after.ids) :] == after.ids


def test_a_pass_has_each_sample_once_and_the_next_one_follows_without_a_rest(ranks):
    outcomes = ranks(2).results(run_task, OnParts(Parts, 40), SETTINGS)
    seen = [[i for ids in rank.ids for i in ids] for rank in outcomes]
    assert Counter(seen[0][:20] + seen[1][:20]) == Counter(range(40))
    assert {*seen[0][20:]} <= {*range(0, 40, 2)}


def test_epochs_are_as_long_as_the_shortest_part(ranks):
    settings = replace(SETTINGS, steps=None, epochs=2)
    outcome = ranks(2).results(run_task, OnParts(Parts, 41), settings)[0]
    assert (outcome.result.step, outcome.result.epoch) == (2 * 7, 2), "20 samples of each rank: 6 × 3 + 2"


def test_each_evaluation_is_of_the_same_samples_also_after_a_resume(ranks):
    """Parts of 6 and 5 samples, in another order in each pass, and before them a batch for keep_best."""
    settings = replace(SETTINGS, eval_every=EvalEvery(steps=2), keep_best="loss")
    whole = ranks(2).results(run_task, OnParts(Parts, 40, evaluated=11), settings)
    resumed = ranks(2).results(run_task, OnParts(Parts, 40, evaluated=11), settings, whole[0].saves[5])
    of_whole, of_resumed = (each[0].of_kind("eval") for each in (whole, resumed))
    assert of_resumed == of_whole[2:] and len(of_resumed) == 6


def test_another_number_of_workers_is_refused(ranks):
    whole = ranks(2).results(run_task, OnParts(Parts, 40), SETTINGS)
    with pytest.raises(JobError) as refused:
        run_task(ALONE, OnParts(Parts, 40), SETTINGS, whole[0].saves[3])
    assert str(refused.value) == (
        "The checkpoint has the state of OnParts.train_data() on 2 workers, and this start has 1: the stream "
        "splits itself, and its parts cannot be split anew.\n"
        "Set resources.workers: 2, or start over with --fresh, which keeps this run."
    )


class Whole(Parts):
    """Not split, and without noise."""

    def __init__(self, n):
        super().__init__(n)
        self.own = [*range(n)]

    def __iter__(self):
        for _, _, i in super().__iter__():
            yield torch.ones(4), torch.ones(1), i


def test_a_stream_that_does_not_split_itself_is_named(ranks):
    outcome = ranks(2).results(run_task, OnParts(Whole, 40), SETTINGS)[0]
    warnings = outcome.logged("warning", "text")
    assert any("yields the same samples on all workers" in text for text in warnings)


def test_a_stream_of_length_0_is_refused():
    with pytest.raises(JobError, match="returned a data set of 0 samples"):
        run_task(ALONE, OnParts(Parts, 0), SETTINGS)


class Empty(Parts):
    def __len__(self):
        return 9


def test_a_worker_without_a_sample_is_an_error():
    with pytest.raises(DataError, match=r"OnParts\.train_data\(\) yields no sample on this worker"):
        run_task(ALONE, OnParts(Empty, 0), SETTINGS)
