"""Which samples of sharded data a rank takes, in which order: computed from the numbers of samples only.

The samples of all shards have ids: those of the first shard, then those of the second, and so on. In each
epoch the shards are permuted, and the resulting sequence is cut into one range for each rank, of equal
lengths, so that all ranks have the same number of steps. A shard across such a border is read by two ranks,
by each up to or from the border.

A rank reads its range in up to LANES lanes, a shard at a time in each; its batches come from the lanes in
turn. A loader process serves every n-th lane, so the order does not depend on the number of processes.
Samples are shuffled within blocks of consecutive samples of a shard, which a reader keeps in memory.

After a resume with another number of ranks or another batch size, the samples of the epoch that are left are
dealt in the same way: no sample is used twice.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby, islice
from typing import NamedTuple

import torch

from clustertrain.training.ranks.rng import derive_seed

LANES = 12  # with 1, 2, 3, 4, 6 and 12 processes, each lane has one process for the whole epoch

Ids = Sequence[int]  # ascending ids of one shard: a range, or a list of those that are left


class Dealing(NamedTuple):
    """To how many ranks, in batches of how many samples."""

    world_size: int
    batch_size: int


class Dealt(NamedTuple):
    """A part of an epoch: `samples` were dealt to `world_size` ranks in batches of `batch_size`."""

    world_size: int
    batch_size: int
    samples: int


@dataclass(frozen=True)
class ShardOrder:
    """The orders of the epochs.

    Args:
        counts: the number of samples of each shard.
        shuffle: the number of consecutive samples of a shard that are shuffled; with 0 nothing is, and the
            shards keep their order as well.
        used: only so many samples of each shard, the first ones; None: all.
    """

    counts: tuple[int, ...]
    shuffle: int
    seed: int
    used: tuple[int, ...] | None = None

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The first id of each shard, and the number of all samples."""
        return tuple(accumulate(self.counts, initial=0))

    def batches(self, epoch: int, dealt: Sequence[Dealt], rank: int, to: Dealing) -> Lanes:
        """What `rank` reads in the epoch, after the samples in `dealt`."""
        segments = self._shards(epoch)
        for i, part in enumerate(dealt):
            if i == len(dealt) - 1 and part[:2] == to:
                lanes = self._lanes(epoch, segments, rank, to)
                lanes.take(part.samples // to.world_size)
                return lanes
            segments = self._left(epoch, segments, part)
        return self._lanes(epoch, segments, rank, to)

    def evaluation(self, rank: int, to: Dealing) -> Lanes:
        """What `rank` reads in an evaluation: every sample is on one rank; the first ranks may have one
        more."""
        return self._lanes(0, self._shards(0), rank, to, all_samples=True)

    def _shards(self, epoch: int) -> list[Ids]:
        numbers: Sequence[int] = range(len(self.counts))
        if self.shuffle:
            generator = torch.Generator().manual_seed(derive_seed(self.seed, epoch))
            numbers = torch.randperm(len(self.counts), generator=generator).tolist()
        used = self.used or self.counts
        return [range(self.starts[i], self.starts[i] + used[i]) for i in numbers if used[i]]

    def _lanes(
        self, epoch: int, segments: list[Ids], rank: int, to: Dealing, *, all_samples: bool = False
    ) -> Lanes:
        each, rest = divmod(sum(map(len, segments)), to.world_size)
        start, count = rank * each, each
        if all_samples:
            start, count = start + min(rank, rest), count + (rank < rest)
        mine = [segment for segment in _cut(segments, start, start + count) if segment]
        return Lanes([_Shuffled(self, epoch, segment) for segment in mine], to.batch_size)

    def _left(self, epoch: int, segments: list[Ids], part: Dealt) -> list[Ids]:
        """The segments without the samples of `part`."""
        left: list[Ids] = []
        for rank in range(part.world_size):
            lanes = self._lanes(epoch, segments, rank, Dealing(*part[:2]))
            lanes.take(part.samples // part.world_size)
            left += lanes.left()
        each = sum(map(len, segments)) // part.world_size
        tail = _cut(segments, each * part.world_size, sum(map(len, segments)))
        return [segment for segment in (*left, *tail) if segment]

    def permuted(self, epoch: int, ids: Ids) -> Iterator[int]:
        """The ids of a segment, shuffled within the blocks of its shard."""
        if not self.shuffle or not ids:
            yield from ids
            return
        start = self.starts[shard_of(self.starts, ids[0])]
        for _, group in groupby(ids, lambda i: (i - start) // self.shuffle):
            block = list(group)
            generator = torch.Generator().manual_seed(derive_seed(self.seed, epoch, block[0]))
            yield from (block[i] for i in torch.randperm(len(block), generator=generator).tolist())


def shard_of(starts: Sequence[int], sample: int) -> int:
    """The number of the shard of a sample; `starts` as in ShardOrder."""
    return bisect_right(starts, sample) - 1


def divisor_at_most(number: int, most: int) -> int:
    """The largest divisor of `number` up to `most`, or 0 if `most` is 0."""
    return max((n for n in range(1, min(number, most) + 1) if number % n == 0), default=0)


def _cut(segments: list[Ids], start: int, end: int) -> list[Ids]:
    """The part of a sequence of segments from `start` to `end`, counted in samples."""
    found, at = [], 0
    for segment in segments:
        found.append(segment[max(0, start - at) : max(0, end - at)])
        at += len(segment)
    return found


class _Shuffled:
    """A segment that is read from its start to its end."""

    def __init__(self, order: ShardOrder, epoch: int, ids: Ids) -> None:
        self._ids, self._count = ids, 0
        self._reading = order.permuted(epoch, ids)

    def take(self, count: int) -> list[int]:
        taken = list(islice(self._reading, count))
        self._count += len(taken)
        return taken

    @property
    def is_empty(self) -> bool:
        return self._count == len(self._ids)

    def left(self) -> Ids:
        return sorted(self._reading) if self._count else self._ids


class Lanes:
    """The samples of one rank: `take` returns the next ones, batch after batch from the lanes in turn."""

    def __init__(self, segments: list[_Shuffled], batch_size: int) -> None:
        self._batch_size = batch_size
        self._waiting = deque(segments)
        self.number = divisor_at_most(LANES, len(segments)) or 1
        self._open = deque(self._waiting.popleft() for _ in range(min(self.number, len(segments))))
        self._of_batch = 0  # samples of the current batch that are taken

    def take(self, count: int) -> list[int]:
        """The next `count` ids; fewer at the end."""
        taken: list[int] = []
        while len(taken) < count and self._open:
            wanted = min(count - len(taken), self._batch_size - self._of_batch)
            ids = self._open[0].take(wanted)
            taken += ids
            self._of_batch += len(ids)
            if self._open[0].is_empty:
                self._next_segment()
            if self._of_batch == self._batch_size:
                self._of_batch = 0
                self._open.rotate(-1)
        return taken

    def _next_segment(self) -> None:
        """The lane goes on with the next segment; without one it ends."""
        if self._waiting:
            self._open[0] = self._waiting.popleft()
        else:
            self._open.popleft()
            if self._of_batch == self._batch_size:
                self._open.rotate(1)  # the turn of the next lane comes by the end of the batch

    def left(self) -> list[Ids]:
        """The samples that were not taken, as segments."""
        return [segment.left() for segment in (*self._open, *self._waiting)]
