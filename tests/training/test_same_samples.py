"""Three samples of each map-style data set are compared over the ranks; what is right gives no warning."""

import random
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, Subset, TensorDataset

from clustertrain.training.data.loading import sent_copy
from clustertrain.training.data.same_samples import _UntilLate, differing_sample
from training.ranks import ALONE
from training.tasks import Plain

OF_TENSORS = TensorDataset(torch.arange(40.0).reshape(20, 2))


@dataclass(frozen=True)
class Scan:
    """A sample of the user's own class."""

    voxels: np.ndarray
    names: frozenset[str]


class Samples:
    """The sample `i` is what `of(self, i)` returns; remembers what it was asked for."""

    def __init__(self, rank: int, of: Any, size: int = 20) -> None:
        self.rank, self.of, self.size = rank, of, size
        self.asked: list[int] = []
        self.generator = np.random.default_rng(rank)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, i: int) -> Any:
        self.asked.append(i)
        return self.of(self, i)


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        raise AssertionError("a stream is not read")


def shuffled(rank: int) -> Any:
    """As os.listdir of two nodes, or a split from a generator without a seed."""
    return Subset(OF_TENSORS, random.Random(rank).sample(range(20), 16))


def at_the_end(own: Samples, i: int) -> Any:
    return {"id": i, "y": [i, own.rank * (i == 19)]}


def augmented(own: Samples, i: int) -> Any:
    return {"x": torch.randn(2) + random.random(), "y": np.random.rand(3), "id": str(i)}


def augmented_by_itself(own: Samples, i: int) -> Any:
    return own.generator.normal(size=2)


def of_this_node(own: Samples, i: int) -> Any:
    return f"/scratch/node-{own.rank}/{i}.png", i


def late(own: Samples, i: int) -> Any:
    time.sleep(2.2 * own.rank)
    return own.rank


def raising(own: Samples, i: int) -> Any:
    raise ValueError("the loader reports it")


def scan(own: Samples, i: int) -> Any:
    return Scan(np.full((2, 2), i), frozenset({"liver", "tumour", "kidney"}))


def scan_of_rank(own: Samples, i: int) -> Any:
    return Scan(np.full((2, 2), own.rank), frozenset({"liver"}))


def unpicklable(rank: int) -> Any:
    return Samples(rank, lambda own, i: own.rank)


RIGHT = (augmented, augmented_by_itself, of_this_node, late, raising, scan)
DIFFERENT = {
    shuffled: "sample 0 of Plain.train_data() is another one on ranks 1, 2 than on rank 0",
    at_the_end: "sample 19 of Plain.train_data() is another one on ranks 1, 2 than on rank 0",
    scan_of_rank: "sample 0 of Plain.train_data() is another one on ranks 1, 2 than on rank 0",
    unpicklable: "sample 0 of Plain.train_data() is another one on ranks 1, 2 than on rank 0",
}


def made(of: Any, rank: int) -> Any:
    return of(rank) if of in (shuffled, unpicklable) else Samples(rank, of)


def compared(rank_info: Any, of: Any) -> Any:
    """The warning, which data was read, and whether the random states have changed."""
    dataset = made(of, rank_info.rank)
    before = random.getstate(), torch.get_rng_state()
    sets = {"train_data": dataset, "eval_data": None}
    warning = differing_sample(Plain(), sets, 0, rank_info)
    is_restored = before[0] == random.getstate() and before[1].equal(torch.get_rng_state())
    return warning, getattr(dataset, "asked", []), is_restored


@pytest.mark.parametrize("of", DIFFERENT, ids=lambda of: of.__name__)
def test_a_sample_that_differs_is_named_with_its_ranks(ranks, of):
    answers = ranks(3).results(compared, of)
    for warning, _, is_restored in answers:
        assert warning.startswith(f"{DIFFERENT[of]}: one rank may train on what another holds out. ")
        assert "\n" not in warning
        assert is_restored


@pytest.mark.parametrize("of", RIGHT, ids=lambda of: of.__name__)
def test_what_is_right_or_cannot_be_known_gives_no_warning(ranks, of):
    began_s = time.monotonic()
    assert ranks(2).results(compared, of) == 2 * [(None, [], True)], "a copy is asked for the samples"
    assert time.monotonic() - began_s < 4


def evaluated(rank_info: Any) -> Any:
    sets = {"train_data": Stream(), "eval_data": made(at_the_end, rank_info.rank)}
    return differing_sample(Plain(), sets, 0, rank_info)


def test_evaluation_data_is_compared_and_a_stream_is_not(ranks):
    for warning in ranks(2).results(evaluated):
        assert warning.startswith("sample 19 of Plain.eval_data() is another one on rank 1 than on rank 0: ")


def test_a_list_that_takes_long_to_copy_is_left_in_peace():
    with pytest.raises(TimeoutError):
        sent_copy([str(i) for i in range(100_000)], file=_UntilLate(time.monotonic()))


def test_one_rank_asks_for_no_sample():
    assert compared(ALONE, unpicklable) == (None, [], True)
