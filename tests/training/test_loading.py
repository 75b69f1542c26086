import dataclasses
from collections import UserDict, namedtuple

import pytest
import torch
from torch.utils.data import TensorDataset, default_collate

from clustertrain.training.data import loading
from clustertrain.training.data.loading import Fetch, map_tensors
from clustertrain.training.data.sampling import MicroBatch

KEYS = [MicroBatch([4, 1, 7], 11, 1.0, None), MicroBatch([0, 2], 12, 1.0, None)]


class Counting(TensorDataset):
    """Not a TensorDataset itself: its own __getitem__ must be used."""

    def __getitem__(self, i):
        return -1, i


class Whole:
    """Gives all samples of a batch at once."""

    def __len__(self):
        return 10

    def __getitems__(self, ids):
        self.requested = ids
        return [(torch.tensor(i), i * i) for i in ids]


def test_a_tensor_dataset_gives_what_default_collate_would():
    dataset = TensorDataset(torch.arange(20.0).reshape(10, 2), torch.arange(10))
    fast = Fetch(dataset, default_collate)[KEYS[0]]
    slow = default_collate([dataset[i] for i in KEYS[0].ids])
    assert type(fast) is type(slow)
    assert all(torch.equal(a, b) for a, b in zip(fast, slow, strict=True))


def test_a_subclass_and_a_custom_collate_are_used():
    assert Fetch(Counting(torch.arange(10)), default_collate)[KEYS[1]][1].tolist() == [0, 2]
    assert Fetch(TensorDataset(torch.arange(10)), len)[KEYS[0]] == 3


def test_getitems_is_called_once_per_batch():
    dataset = Whole()
    ids, squares = Fetch(dataset, default_collate)[KEYS[0]]
    assert dataset.requested == [4, 1, 7] and ids.tolist() == [4, 1, 7] and squares.tolist() == [16, 1, 49]


class Ending(Whole):
    def __getitems__(self, ids):
        return next(iter(()))


def test_a_stop_iteration_of_a_dataset_is_an_error_and_not_the_end_of_the_data():
    sent = loading._Sent(Fetch(Ending(), default_collate))  # what a loader process calls
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        sent[KEYS[0]]


@dataclasses.dataclass(frozen=True)
class Masked:
    ids: torch.Tensor
    mask: torch.Tensor = dataclasses.field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "mask", self.ids > 0)


def test_a_dataclass_may_compute_a_field_itself():
    batch = Masked(torch.tensor([1.0, 0.0]))
    got = map_tensors(batch, torch.logical_not)
    assert got.ids.tolist() == [False, True] and got.mask.tolist() == [False, True]
    assert batch.mask.tolist() == [True, False]


def test_tensors_are_found_in_nested_values():
    pair = namedtuple("pair", "a b")
    box = dataclasses.make_dataclass("box", ["t", "n"])
    one = torch.ones(1)
    value = {"l": [one, "text"], "p": pair(one, 3), "b": box(one, None), "t": (one,)}
    value["u"] = UserDict(ids=one, n=[one])
    got = map_tensors(value, lambda t: t + 1)
    assert got["l"][0] == 2 and got["l"][1] == "text" and got["p"].a == 2 and got["p"].b == 3
    assert type(got["u"]) is UserDict and got["u"]["ids"] == 2 and got["u"]["n"][0] == 2
    assert value["u"]["ids"] == 1
    assert got["b"].t == 2 and got["t"][0] == 2 and one == 1
