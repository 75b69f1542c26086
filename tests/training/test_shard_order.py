"""The order of shards: dealt to ranks and lanes, continued at another number of ranks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from clustertrain.training.data.sampling import BatchSizes, Position, TrainOrder, shard_evaluation_order
from clustertrain.training.data.shard_order import LANES, Dealing, ShardOrder, shard_of
from clustertrain.training.settings import TrainSettings

few = settings(max_examples=60, deadline=None)

counts = st.lists(st.integers(1, 17), min_size=4, max_size=30)
ways = st.tuples(st.integers(1, 4), st.integers(1, 3))  # world size, batch size


def order_of(shards, way, rank, *, accumulate=1, epochs=1, start=None):
    world_size, batch_size = way
    train = TrainSettings(epochs=epochs, batch_size=batch_size, accumulate=accumulate, seed=7)
    sizes = BatchSizes(batch_size, world_size, accumulate)
    return TrainOrder(train, sizes, sum(shards.counts), rank, start or Position(), shards)


def steps(order):
    found, ids = [], []
    for key in order:
        ids += key.ids
        if key.after:
            found.append((ids, Position.of({"position": key.after.as_dict()})))
            ids = []
    return found


@few
@given(counts, ways, st.integers(1, 2), st.integers(0, 6))
def test_an_epoch_takes_each_sample_once_but_a_tail_shorter_than_the_ranks(counts, way, accumulate, shuffle):
    shards = ShardOrder(tuple(counts), shuffle, 3)
    ranks = [steps(order_of(shards, way, rank, accumulate=accumulate)) for rank in range(way[0])]
    seen = Counter(i for rank in ranks for ids, _ in rank for i in ids)
    assert set(seen.values()) == {1} and sum(counts) - len(seen) < way[0]
    assert len({len(rank) for rank in ranks}) == 1, "the ranks have equal numbers of steps"
    for together in zip(*ranks, strict=True):
        assert len({len(ids) for ids, _ in together}) == 1, "and of samples in each of them"


@few
@given(counts, ways, st.data())
def test_a_resume_continues_with_the_samples_of_an_uninterrupted_run(counts, way, data):
    shards = ShardOrder(tuple(counts), 5, 3)
    whole = steps(order_of(shards, way, way[0] - 1, epochs=2))
    at = data.draw(st.integers(1, len(whole)))
    rest = steps(order_of(shards, way, way[0] - 1, epochs=2, start=whole[at - 1][1]))
    assert rest == whole[at:]


@few
@given(counts, st.lists(ways, min_size=2, max_size=4), st.data())
def test_other_numbers_of_ranks_and_batch_sizes_use_no_sample_twice(counts, ways, data):
    shards = ShardOrder(tuple(counts), 5, 3)
    seen, position = Counter(), Position()
    for k, way in enumerate(ways):
        ranks = [steps(order_of(shards, way, rank, start=position)) for rank in range(way[0])]
        if not ranks[0]:
            break
        last = len(ranks[0]) if k == len(ways) - 1 else data.draw(st.integers(1, len(ranks[0])))
        seen.update(i for rank in ranks for ids, _ in rank[:last] for i in ids)
        position = ranks[0][last - 1][1]
        if position.epoch:
            break
    assert set(seen.values()) == {1}
    assert position.epoch == 0 or sum(counts) - len(seen) < max(way[0] for way in ways)


def test_epochs_differ_and_without_shuffle_all_stays_in_order():
    shards = ShardOrder((4, 4, 4, 4), 4, 3)
    both = [i for ids, _ in steps(order_of(shards, (1, 4), 0, epochs=2)) for i in ids]
    assert both[:16] != both[16:] and sorted(both[:16]) == sorted(both[16:]) == list(range(16))
    in_order = replace(shards, shuffle=0, counts=(16,))
    assert [i for ids, _ in steps(order_of(in_order, (1, 4), 0)) for i in ids] == list(range(16))


def test_a_rank_of_equal_shards_reads_whole_shards_and_a_lane_one_at_a_time():
    shards = ShardOrder((40,) * 48, 10, 3)
    lanes = shards.batches(0, (), 1, Dealing(2, 8))
    assert lanes.number == LANES
    batches = [lanes.take(8) for _ in range(24 * 40 // 8)]
    of_lane = {n: [shard_of(shards.starts, ids[0]) for ids in batches[n::LANES]] for n in range(LANES)}
    for shards_read in of_lane.values():
        assert len(set(shards_read)) == 2 and sorted(shards_read) in (shards_read, shards_read[::-1])
    assert len({shard for read in of_lane.values() for shard in read}) == 24


@few
@given(counts, ways)
def test_an_evaluation_takes_each_sample_once_and_ranks_differ_by_one(counts, way):
    world_size, batch_size = way
    ranks = [
        [i for key in shard_evaluation_order(ShardOrder(tuple(counts), 0, 0), batch_size, rank, world_size)
         for i in key.ids]
        for rank in range(world_size)
    ]  # fmt: skip
    assert Counter(i for ids in ranks for i in ids) == Counter(range(sum(counts)))
    assert [len(ids) for ids in ranks] == [len(range(r, sum(counts), world_size)) for r in range(world_size)]
