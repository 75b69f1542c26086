import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clustertrain.errors import JobError
from clustertrain.training.data.loader_kinds import evaluation_keys
from clustertrain.training.data.sampling import (
    BatchSizes,
    Position,
    TrainOrder,
    epoch_order,
)
from clustertrain.training.settings import TrainSettings

few = settings(max_examples=60, deadline=None)


def orders(world_size, *, samples, batch_size, accumulate=1, start=None, draws=None, epochs=1, **settings):
    train = TrainSettings(epochs=epochs, **settings)
    sizes = BatchSizes(batch_size, world_size, accumulate)
    start = start or Position()
    return [TrainOrder(train, sizes, samples, rank, start, weight_sums=draws) for rank in range(world_size)]


def by_step(order):
    """[(ids of the step, position after it)] of one rank."""
    steps, ids = [], []
    for key in order:
        ids += key.ids
        if key.after:
            steps.append((ids, key.after))
            ids = []
    assert not ids, "the last micro-batch of a run ends a step"
    return steps


shapes = st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(1, 3)).flatmap(
    lambda t: st.tuples(*map(st.just, t), st.integers(t[0] * t[1] * t[2], t[0] * t[1] * t[2] + 60))
)


@few
@given(shapes, st.integers(0, 9))
def test_an_epoch_takes_each_sample_once_but_a_tail_shorter_than_the_ranks(shape, seed):
    world_size, batch_size, accumulate, samples = shape
    ranks = orders(world_size, samples=samples, batch_size=batch_size, accumulate=accumulate, seed=seed)
    seen = Counter(i for order in ranks for key in order for i in key.ids)
    assert set(seen.values()) == {1}
    assert samples - len(seen) < world_size
    assert seen.keys() <= set(range(samples))


@few
@given(shapes)
def test_ranks_agree_on_positions_numbers_and_shares(shape):
    world_size, batch_size, accumulate, samples = shape
    ranks = [
        list(order)
        for order in orders(world_size, samples=samples, batch_size=batch_size, accumulate=accumulate)
    ]
    for keys in zip(*ranks, strict=True):
        assert len({(len(key.ids), key.share, key.after) for key in keys}) == 1
        assert len({key.seed for key in keys}) == world_size
    step_shares = 0.0
    for key in ranks[0]:
        step_shares += key.share
        if key.after:
            assert math.isclose(step_shares, 1.0)
            step_shares = 0.0


@few
@given(shapes, st.integers(1, 5), st.none() | st.integers(1, 9), st.data())
def test_resuming_at_any_step_gives_the_same_steps_and_length(shape, epochs, limit, data):
    world_size, batch_size, accumulate, samples = shape
    shape = {"samples": samples, "batch_size": batch_size, "accumulate": accumulate, "epochs": epochs}
    shape["limit_batches"] = limit
    order = orders(world_size, **shape)[0]
    steps = by_step(order)
    assert order.total_steps == len(steps)
    at = data.draw(st.integers(1, len(steps)))
    rest = orders(world_size, **shape, start=steps[at - 1][1])[0]
    assert by_step(rest) == steps[at:]
    assert rest.total_steps == len(steps)


def test_a_limited_epoch_ends_at_once_if_fewer_samples_per_step_have_passed_its_end():
    """Saved after 2 of 3 steps of 12 samples; with one worker a step has 4, and 3 of them have 12."""
    order = orders(1, samples=100, batch_size=4, epochs=2, limit_batches=3, start=Position(0, 24, 2, 24))[0]
    assert [after.step for _, after in by_step(order)] == [3, 4, 5]
    assert order.total_steps == 5


def test_a_limited_evaluation_has_samples_of_the_whole_data():
    def ids(samples):
        ranks = [evaluation_keys(range(100), samples, 2, rank, 3) for rank in range(3)]
        return sorted(i for keys in ranks for key in keys for i in key.ids)

    assert ids(12) == [0, 8, 16, 25, 33, 41, 50, 58, 66, 75, 83, 91]
    assert ids(100) == list(range(100))


def test_each_epoch_and_seed_has_another_order():
    assert sorted(epoch_order(0, 0, 20).tolist()) == list(range(20))
    assert len({tuple(epoch_order(seed, epoch, 20).tolist()) for seed in range(2) for epoch in range(2)}) == 4


def test_a_global_batch_that_does_not_divide_names_the_nearest_that_do():
    with pytest.raises(JobError) as error:
        BatchSizes.of(TrainSettings(epochs=1, global_batch_size=50, accumulate=2), 3, 1000)
    assert str(error.value) == (
        "train.global_batch_size is 50, not a multiple of workers × accumulate.\n"
        "3 × 2 = 6; 50 % 6 is 2.\n"
        "Nearest that fit: 48 and 54."
    )
    with pytest.raises(JobError, match=r"Nearest that fit: 6\.$"):
        BatchSizes.of(TrainSettings(epochs=1, global_batch_size=5, accumulate=2), 3, 1000)


@few
@given(
    st.sampled_from([(1, 12), (2, 6), (3, 4), (12, 1)]),
    st.lists(st.sampled_from([0.0, 1e-300, 0.1, 1.0, 3e7]), min_size=12, max_size=60).filter(any),
    st.integers(0, 3),
)
def test_draws_are_one_sequence_for_any_world_size_without_a_sample_of_weight_0(shape, weights, seed):
    world_size, batch_size = shape
    draws = torch.tensor(weights, dtype=torch.float64).cumsum(0)
    shape = {"samples": len(weights), "batch_size": batch_size, "epochs": 2, "seed": seed, "draws": draws}
    steps = [by_step(order) for order in orders(world_size, **shape)]
    sequence = epoch_order(seed, 0, len(weights), draws).tolist()
    assert all(weights[i] > 0 for i in sequence) and len(sequence) == len(weights)
    consumed = 0
    for of_ranks in zip(*steps, strict=True):
        if of_ranks[0][1].epoch:
            break
        taken = [ids for ids, _ in of_ranks]
        in_turn = [i for of_all in zip(*taken, strict=True) for i in of_all]
        assert in_turn == sequence[consumed : consumed + len(in_turn)]
        consumed += len(in_turn)
    rest = orders(world_size, **shape, start=steps[0][0][1])[0]
    assert by_step(rest) == steps[0][1:]


def test_samples_are_drawn_in_proportion_to_their_weights():
    weights = torch.arange(1000, dtype=torch.float64) % 4  # 0, 1, 2, 3
    draws = weights.cumsum(0)
    drawn = torch.cat([epoch_order(5, epoch, 1000, draws) for epoch in range(200)])
    shares = torch.bincount(drawn % 4, minlength=4) / len(drawn)
    assert shares.tolist() == pytest.approx([0, 1 / 6, 2 / 6, 3 / 6], abs=0.005)
    assert not torch.equal(*(epoch_order(5, epoch, 1000, draws) for epoch in (0, 1)))
