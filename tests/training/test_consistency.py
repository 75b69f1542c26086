"""Every rank has the same model and samples: what differs is named before the first step, or a save."""

import random
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset, Subset, TensorDataset

from clustertrain.errors import JobError
from clustertrain.training.data.loading import sent_copy
from clustertrain.training.data.same_samples import _UntilLate, differing_sample
from clustertrain.training.ranks.consistency import WeightsDiverged, check_same_weights
from clustertrain.training.settings import SaveEvery, TrainSettings
from training.ranks import ALONE
from training.tasks import Plain, run_task, same

SETTINGS = TrainSettings(steps=6, batch_size=4, save_every=SaveEvery(steps=4))


class OfRank(Plain):
    """Its model depends on the rank."""

    def __init__(self, rank: int, kind: str) -> None:
        super().__init__()
        self.rank, self.kind = rank, kind

    def model(self) -> nn.Module:
        is_last = self.rank == 2
        model = nn.Sequential(nn.Linear(4, 8))
        model.append(nn.Linear(8, 1, bias=not (self.kind == "fewer" and is_last)))
        if self.kind == "dtype" and is_last:
            model.double()
        if self.kind == "values":
            nn.init.constant_(model[0].weight, self.rank)
        model.register_buffer("scale", torch.full((3,), 1.0 + (self.kind == "buffer" and is_last)))
        return model


class OwnSteps(torch.optim.SGD):
    """An optimizer with noise that is different on each rank, from its third step on."""

    def __init__(self, parameters, rank: int) -> None:
        super().__init__(parameters, lr=0.1)
        self.rank, self.steps = rank, 0

    def step(self, closure=None):
        super().step(closure)
        self.steps += 1
        if self.steps >= 3 and self.rank == 1:
            with torch.no_grad():
                self.param_groups[0]["params"][1].add_(1e-7)


class Noisy(Plain):
    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank

    def optimizer(self, model):
        return OwnSteps(model.parameters(), self.rank)


def of_kind(rank_info, kind):
    return run_task(rank_info, OfRank(rank_info.rank, kind), SETTINGS)


def of_kind_on_rank_0(rank_info, kind):
    return run_task(rank_info, OfRank(0, kind), SETTINGS)


def noisy(rank_info, settings):
    return run_task(rank_info, Noisy(rank_info.rank), settings)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("fewer", "scale (3,) float32 instead of 1.bias (1,) float32"),
        ("dtype", "0.weight (8, 4) float64 instead of 0.weight (8, 4) float32"),
    ],
)
def test_another_model_on_a_rank_is_named_before_the_first_step(ranks, kind, said):
    errors = ranks(3).call(of_kind, kind)
    assert {type(error) for error in errors} == {JobError}
    assert len({str(error) for error in errors}) == 1
    assert f"OfRank.model() built another model on rank 2 than on rank 0: {said}." in str(errors[0])


def test_other_values_of_a_buffer_are_a_warning_and_rank_0s_are_used(ranks):
    outcomes = ranks(3).results(of_kind, "buffer")
    assert outcomes[0].logged("warning", "text") == [
        "the buffer scale of OfRank.model() has other values on rank 2 than on rank 0; rank 0's are used"
    ]
    assert outcomes[2].weights()["scale"].tolist() == [1.0, 1.0, 1.0]


def test_other_weights_are_replaced_by_those_of_rank_0_before_the_first_step(ranks):
    outcomes = ranks(3).results(of_kind, "values")
    alike = ranks(3).results(of_kind_on_rank_0, "values")
    for outcome, other in zip(outcomes, alike, strict=True):
        assert same(outcome.weights(), other.weights())


@pytest.mark.parametrize(("every", "step"), [(None, 4), (1, 3), (5, 5)])
def test_weights_that_diverge_are_found(ranks, every, step):
    """By default at a save, which is then left out."""
    errors = ranks(2).call(noisy, replace(SETTINGS, compare_weights_every=every))
    assert {type(error) for error in errors} == {WeightsDiverged}
    first = f"After step {step} the weights of rank 1 differ from those of rank 0, first in bias;"
    assert all(str(error).startswith(first) for error in errors)
    assert "compare_weights_every: 0" in str(errors[0])


def test_the_comparison_can_be_turned_off(ranks):
    outcome = ranks(2).results(noisy, replace(SETTINGS, compare_weights_every=0))[0]
    assert outcome.result.finished


class OwnMomentum(OwnSteps):
    """Keeps what no weight depends on; it is different on rank 1 from step 3 on."""

    def __init__(self, parameters, rank: int) -> None:
        super().__init__(parameters, rank=0)
        self.own = rank == 1

    def step(self, closure=None):
        super().step(closure)
        bias = self.param_groups[0]["params"][1]
        is_other = self.own and self.steps >= 3
        state = self.state[bias]
        state["history"] = [torch.ones(2) + 1e-7 * is_other, {"object": object()}]


class Kept(Noisy):
    def optimizer(self, model):
        return OwnMomentum(model.parameters(), self.rank)


def keeping(rank_info):
    """Saving would fail: an object is no part of a checkpoint."""
    settings = replace(SETTINGS, save_every=SaveEvery(), compare_weights_every=1)
    return run_task(rank_info, Kept(rank_info.rank), settings)


def test_an_optimizer_whose_state_diverges_is_found_before_a_weight_depends_on_it(ranks):
    errors = ranks(2).call(keeping)
    assert {type(error) for error in errors} == {WeightsDiverged}, errors
    first = (
        "After step 3 the weights of rank 1 differ from those of rank 0, first in the optimizer's state of"
    )
    assert all(str(error).startswith(f"{first} bias;") for error in errors)


def one_bit_off(rank_info, dtype):
    """In one of rank 1's weights."""
    model = nn.Linear(3, 1, dtype=dtype)
    optimizer = torch.optim.SGD(model.parameters())
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1, 2, 4]]))
        model.bias.fill_(1)
    check_same_weights(model, optimizer, 0, rank_info)
    if rank_info.rank == 1:
        with torch.no_grad():
            model.weight[0, 0] = 1 + torch.finfo(dtype).eps
    check_same_weights(model, optimizer, 1, rank_info)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex64])
def test_one_bit_is_a_difference(ranks, dtype):
    errors = ranks(2).call(one_bit_off, dtype)
    first = "After step 1 the weights of rank 1 differ from those of rank 0, first in weight;"
    assert {type(error) for error in errors} == {WeightsDiverged}
    assert all(str(error).startswith(first) for error in errors)


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


def unpicklable(rank: int) -> Any:
    return Samples(rank, lambda own, i: own.rank)


RIGHT = (augmented, augmented_by_itself, of_this_node, late, raising, scan)
DIFFERENT = {
    shuffled: "sample 0 of Plain.train_data() is another one on rank 1 than on rank 0",
    at_the_end: "sample 19 of Plain.train_data() is another one on rank 1 than on rank 0",
    unpicklable: "sample 0 of Plain.train_data() is another one on rank 1 than on rank 0",
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
def test_a_sample_that_differs_is_named_with_its_rank(ranks, of):
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


def test_a_list_that_takes_long_to_copy_is_not_compared():
    with pytest.raises(TimeoutError):
        sent_copy([str(i) for i in range(100_000)], file=_UntilLate(time.monotonic()))


def test_one_rank_asks_for_no_sample():
    assert compared(ALONE, unpicklable) == (None, [], True)
