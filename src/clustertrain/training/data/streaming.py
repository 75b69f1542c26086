"""An IterableDataset as data: every rank reads the same stream, and takes its samples of each step.

The consumed samples of an epoch are a prefix of the stream, for any number of ranks. A resume reads the
stream from its start up to the position; so the random numbers of the stream are those of an uninterrupted
run. One process reads it: in several, each would read all of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import repeat, takewhile
from typing import Any, NamedTuple

import torch
from torch.utils.data import IterableDataset

from clustertrain.errors import DataError, JobError
from clustertrain.training.data.loading import Collate, CopyToDevice, loaded, loader_with_processes
from clustertrain.training.data.sampling import UNKNOWN, MicroBatch, Position, TrainOrder
from clustertrain.training.nested_tensors import map_leaves
from clustertrain.training.ranks.distributed import AsyncMax, RankInfo
from clustertrain.training.ranks.rng import KeptRng, derive_seed, private_rng
from clustertrain.training.values import Batch, Dataset, Sample

_DIGESTED_BYTES = 1 << 20  # of a sample


def is_stream(dataset: Dataset) -> bool:
    """Return whether a data set has samples in turn only."""
    return isinstance(dataset, IterableDataset)


class StreamFetch:
    """`fetch[key]` is (batch on the CPU, digest of the first sample of all ranks).

    Where the stream has ended, it is the number of its samples.

    Keys come in the order of the stream; a key of another epoch, or of an earlier sample, starts it again. A
    batch is whole only if the stream has the samples of all ranks, whose ids follow each other.
    """

    def __init__(
        self, dataset: Dataset, collate: Collate, seed: int, *, rank: int = 0, world_size: int = 1
    ) -> None:
        self.dataset = dataset
        self._collate, self._seed = collate, seed
        self._rank, self._world_size = rank, world_size
        self._epoch, self._next = -1, 0
        self._rng = KeptRng(0)
        self._iterator: Iterator[Any] = iter(())

    def __getitem__(self, key: MicroBatch) -> tuple[Any, int] | int:
        first, end = key.ids[0] - self._rank, key.ids[-1] - self._rank + self._world_size
        if key.epoch != self._epoch or first < self._next:
            self._start(key.epoch)
        mine, found, digest = set(key.ids), [], 0
        with self._rng.used():
            while self._next < end:
                try:
                    sample = next(self._iterator)
                except StopIteration:
                    return self._next
                if self._next == first:
                    digest = digest_of(sample)
                if self._next in mine:
                    found.append(sample)
                self._next += 1
        with private_rng(key.seed):
            return self._collate(found), digest

    def _start(self, epoch: int) -> None:
        self._epoch, self._next = epoch, 0
        self._rng = KeptRng(derive_seed(self._seed, epoch))
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)
        with self._rng.used():
            self._iterator = iter(self.dataset)


class BatchOfStream:
    """`fetch[key]` is the batch of one key: for an evaluation, and for a rehearsal of one batch.

    Raises:
        JobError: the stream ends before.
    """

    def __init__(self, fetch: StreamFetch, name: str) -> None:
        self._fetch, self._name = fetch, name

    def __getitem__(self, key: MicroBatch) -> Batch:
        found = self._fetch[key]
        if isinstance(found, int):
            raise JobError(
                f"{self._name} ended after {found} samples; {key.ids[-1] + 1} are needed.\n"
                "Its __len__ must be the number of samples that it yields, and each `iter()` must start "
                "again."
            )
        return found[0]


_Step = list[tuple[MicroBatch, Any, int]]  # each pass with its batch and digest
_END = (-1, 0, 0)  # in place of `at`; it differs from the step of a rank that goes on


class _Read(NamedTuple):
    """What was read of a stream: a step, of which `at` is (epoch, first sample, digest), or its end.

    The step before it can be delivered now, because its position is known: after the last whole step of a
    stream it is the start of the next epoch.
    """

    at: tuple[int, int, int]
    before: _Step
    note: str = ""


class _Steps:
    """Iterates over the steps of a rank, here or in a loader process, up to the end of the run.

    Samples that are fewer than a step are left out.
    """

    def __init__(self, fetch: StreamFetch, order: TrainOrder, name: str) -> None:
        self._fetch, self._order, self._name = fetch, order, name
        self._reads: Iterator[_Read] | None = None

    def __getitem__(self, _: None) -> _Read | None:
        """Return the next step, as a loader process asks for it, or None after the last one."""
        self._reads = self._reads or iter(self)
        return next(self._reads, None)

    def __iter__(self) -> Iterator[_Read]:
        order, start = self._order, self._order.settle(self._order.start)
        waiting: _Step = []
        note = ""
        while not order.done(start):
            step: _Step = []
            for key in replace(order, start=start):
                found = self._fetch[key]
                if isinstance(found, int):
                    start, note = self._next_epoch(start, found)
                    if waiting:
                        last, batch, digest = waiting.pop()
                        waiting.append((last._replace(after=start), batch, digest))
                    break
                step.append((key, *found))
                if key.after is not None:
                    first, _, digest = step[0]
                    yield _Read((key.epoch, first.ids[0] - order.rank, digest), waiting, note)
                    start, waiting, step, note = key.after, step, [], ""
        yield _Read(_END, waiting, note)

    def _next_epoch(self, after: Position, ended: int) -> tuple[Position, str]:
        """Return the start of the next epoch, where the stream has ended, and a note.

        Args:
            after: the position after the last whole step.
            ended: the number of samples of the stream.

        Raises:
            DataError: the epoch has no step.
        """
        if after.offset == 0:
            needed = self._order.sizes.global_batch_size
            what = f"{self._name} ended after {ended} samples; a step takes {needed}"
            if ended == 0:
                what = f"{self._name} yielded no sample on rank {self._order.rank}"
            raise DataError(
                f"{what}, so an epoch has no step.\n"
                "Each `iter()` must yield the samples again, on every rank all of them: clustertrain splits "
                "them among the ranks."
            )
        size = self._order.samples
        of_length = "" if size == UNKNOWN else f", although its length is {size}"
        return self._order.after_early_end(after), (
            f"epoch {after.epoch} of {self._name} ended after {ended} samples{of_length}; "
            f"the last {max(0, ended - after.offset)} are fewer than a step and were left out"
        )


def stream_batches(
    fetch: StreamFetch,
    order: TrainOrder,
    rank_info: RankInfo,
    *,
    processes: int,
    name: str,
    note: Callable[[str], None],
) -> Iterator[tuple[MicroBatch, Batch]]:
    """Yield (micro-batch, batch on the device), as loading.Loader does.

    At each step all ranks compare their places.

    Args:
        processes: 0 reads in this process, otherwise one loader process does.
        name: the method that returned the data, for messages.
        note: writes a line to the log.
    """
    steps: Any = _Steps(fetch, order, name)
    copied, exchange = CopyToDevice(rank_info.device), AsyncMax()
    if processes:
        loader = loader_with_processes(steps, repeat(None), 1, rank_info.device, reuse=False)
        steps = takewhile(lambda read: read is not None, loaded(loader))
    for read in steps:
        if read.note:
            note(read.note)
        _check_agreement(exchange.receive(), name)
        if rank_info.world_size > 1:
            exchange.send(torch.tensor([*read.at, *(-value for value in read.at)]))
        for key, batch, _ in read.before:
            yield key, copied(batch)
    _check_agreement(exchange.receive(), name)


def _check_agreement(of_ranks: torch.Tensor | None, name: str) -> None:
    """Check that the streams of all ranks are at the same place and have the same samples there.

    Args:
        of_ranks: the largest `at` of all ranks, and the largest negated one; None: nothing was exchanged.

    Raises:
        DataError: on all ranks, if the streams are at different places, or have different samples there.
    """
    if of_ranks is None:
        return
    largest, negated = of_ranks.chunk(2)
    if bool((largest + negated).any()):
        epoch, at, _ = largest.tolist()
        raise DataError(
            f"{name} yields other samples on other ranks: they differ at sample {max(at, 0)} of "
            f"epoch {epoch}, or the stream of one rank ended before.\n"
            "Yield all samples on every rank, in one order: clustertrain splits them among the ranks. "
            "Remove a split by rank, or give the stream state_dict and load_state_dict.\n"
            "Random numbers of Python, numpy and torch are seeded for each epoch."
        )


def digest_of(sample: Sample) -> int:
    """Return a number of 63 bits for the tensors, arrays, numbers and texts in a sample.

    Of an absolute path it has the name of the file, because the folder may be another one on each node.
    """
    found = hashlib.blake2b(digest_size=8)

    def add(name: str, leaf: Any) -> Any:
        found.update(f"{name} {getattr(leaf, 'dtype', '')} {getattr(leaf, 'shape', '')} ".encode())
        value = leaf
        if isinstance(leaf, torch.Tensor):
            value = leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        has_objects = getattr(getattr(value, "dtype", None), "hasobject", False)
        if hasattr(value, "tobytes") and not has_objects:  # of numpy, or an image of PIL
            value = value.tobytes()
        elif isinstance(value, str | int | float):
            text = str(value)
            value = (text.rpartition("/")[2] if text.startswith("/") else text).encode()
        if isinstance(value, bytes):
            found.update(value[:_DIGESTED_BYTES])
        return leaf

    map_leaves(sample, add)
    return int.from_bytes(found.digest(), "little") >> 1
