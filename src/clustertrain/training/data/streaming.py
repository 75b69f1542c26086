"""An IterableDataset as data: every rank reads the same stream, and takes its samples of each step.

The consumed samples of an epoch are a prefix of the stream, for any number of ranks. A resume reads the
stream from its start up to the position; so the random numbers of the stream are those of an uninterrupted
run. One process reads it: in several, each would read all of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch.utils._pytree import tree_flatten
from torch.utils.data import IterableDataset

from clustertrain.errors import DataError, JobError
from clustertrain.training.data.loading import Collate, CopyToDevice, loaded, loader_with_processes
from clustertrain.training.data.sampling import UNKNOWN, MicroBatch, TrainOrder
from clustertrain.training.ranks.distributed import LaterMax, RankInfo
from clustertrain.training.ranks.rng import KeptRng, derive_seed, private_rng

_DIGESTED_BYTES = 1 << 20  # of a sample


class FirstOf(IterableDataset[Any]):
    """The first `samples` samples of a stream."""

    def __init__(self, dataset: Any, samples: int) -> None:
        self._dataset, self._samples = dataset, samples

    def __len__(self) -> int:
        return self._samples

    def __iter__(self) -> Iterator[Any]:
        return islice(self._dataset, self._samples)

    def set_epoch(self, epoch: int) -> None:
        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(epoch)


def is_stream(dataset: Any) -> bool:
    """Whether it has samples in turn only."""
    return isinstance(dataset, IterableDataset)


class End:
    """In place of a batch: the stream has ended after `samples` samples."""

    def __init__(self, samples: int) -> None:
        self.samples = samples


class StreamFetch:
    """`fetch[key]` is (batch on the CPU, digest of the first sample of all ranks), or End.

    Keys come in the order of the stream; a key of another epoch, or of an earlier sample, starts it again. A
    batch is whole only if the stream has the samples of all ranks, whose ids follow each other.
    """

    def __init__(
        self, dataset: Any, collate: Collate, seed: int, *, rank: int = 0, world_size: int = 1
    ) -> None:
        self.dataset = dataset
        self._collate, self._seed = collate, seed
        self._rank, self._world_size = rank, world_size
        self._epoch, self._next = -1, 0
        self._rng = KeptRng(0)
        self._iterator: Iterator[Any] = iter(())

    def __getitem__(self, key: MicroBatch) -> tuple[Any, int] | End:
        first, end = key.ids[0] - self._rank, key.ids[-1] - self._rank + self._world_size
        if key.epoch != self._epoch or first < self._next:
            self._start(key.epoch)
        mine, found, digest = set(key.ids), [], 0
        with self._rng.used():
            while self._next < end:
                try:
                    sample = next(self._iterator)
                except StopIteration:
                    return End(self._next)
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

    def __getitem__(self, key: MicroBatch) -> Any:
        found = self._fetch[key]
        if isinstance(found, End):
            raise JobError(
                f"{self._name} ended after {found.samples} samples; {key.ids[-1] + 1} are needed.\n"
                "Its __len__ must be the number of samples that it yields, and each `iter()` must start "
                "again."
            )
        return found[0]


_Step = list[tuple[MicroBatch, tuple[Any, int]]]


class StreamLoader:
    """Iterates over (micro-batch, batch on the device), as loading.Loader does.

    A step is delivered when the next one was read: so the position after the last whole step of a stream is
    the start of the next epoch. Samples that are fewer than a step are left out. At each step all ranks
    compare where they are.

    Args:
        name: the method that returned the data, for messages.
        note: writes a line to the log.
    """

    def __init__(
        self,
        fetch: StreamFetch,
        order: TrainOrder,
        rank_info: RankInfo,
        *,
        processes: int,
        name: str,
        note: Callable[[str], None],
    ) -> None:
        self._fetch, self._order, self._device = fetch, order, rank_info.device
        self._copied = CopyToDevice(rank_info.device)
        self._processes, self._name, self._note = min(processes, 1), name, note
        self._agreement = Agreement(rank_info, name)
        self._start, self._generation = order.settle(order.start), 0

    def __iter__(self) -> Iterator[tuple[MicroBatch, Any]]:
        waiting: _Step = []
        for step in self._steps():
            if isinstance(step, End):
                waiting = self._ended(step, waiting)
                continue
            self._agreement.check()
            key, (_, digest) = step[0]
            self._agreement.compare(key.epoch, key.ids[0] - self._order.rank, digest)
            yield from self._delivered(waiting)
            waiting = step
        self._agreement.check()
        self._agreement.compare(-1, 0, 0)  # differs from the step of a rank that goes on
        yield from self._delivered(waiting)
        self._agreement.check()

    def _delivered(self, step: _Step) -> Iterator[tuple[MicroBatch, Any]]:
        for key, (batch, _) in step:
            yield key, self._copied(batch)

    def _steps(self) -> Iterator[_Step | End]:
        """The optimizer steps up to the end of the run; End where the stream ends."""
        step: _Step = []
        for generation, key, found in self._results():
            if generation != self._generation:
                continue  # it was requested before the end of the stream was known
            if isinstance(found, End):
                step = []
                yield found
                if self._order.done(self._start):
                    return
                continue
            step.append((key, found))
            if key.after is not None:
                yield step
                step = []
                if self._order.done(key.after):
                    return

    def _results(self) -> Iterator[tuple[int, MicroBatch, Any]]:
        keys, fetch = self._keys(), _Numbered(self._fetch)
        if self._processes:
            yield from loaded(loader_with_processes(fetch, keys, 1, self._device, reuse=False))
        else:
            yield from map(fetch.__getitem__, keys)

    def _ended(self, end: End, waiting: _Step) -> _Step:
        """The step that waits, with the start of the next epoch as the position after it."""
        after = (waiting[-1][0].after if waiting else None) or self._start
        if after.offset == 0:
            raise self._empty(end)
        size = self._order.samples
        of_length = "" if size == UNKNOWN else f", although its length is {size}"
        self._note(
            f"epoch {after.epoch} of {self._name} ended after {end.samples} samples{of_length}; "
            f"the last {max(0, end.samples - after.offset)} are fewer than a step and were left out"
        )
        self._start = self._order.after_early_end(after)
        self._generation += 1
        if not waiting:
            return []
        key, found = waiting[-1]
        return [*waiting[:-1], (key._replace(after=self._start), found)]

    def _empty(self, end: End) -> DataError:
        needed = self._order.sizes.global_batch_size
        if end.samples == 0:
            what = f"{self._name} yielded no sample on rank {self._order.rank}"
        else:
            what = f"{self._name} ended after {end.samples} samples; a step takes {needed}"
        return DataError(
            f"{what}, so an epoch has no step.\n"
            "Each `iter()` must yield the samples again, on every rank all of them: clustertrain splits them "
            "among the ranks."
        )

    def _keys(self) -> Iterator[tuple[int, MicroBatch] | None]:
        """Keys from the current start, without end: the early end of an epoch makes new ones necessary, from
        the next epoch on."""
        while True:
            generation = self._generation
            for key in replace(self._order, start=self._start):
                if generation != self._generation:
                    break
                yield generation, key
            yield None


class _Numbered:
    def __init__(self, fetch: StreamFetch) -> None:
        self._fetch = fetch

    def __getitem__(self, item: tuple[int, MicroBatch] | None) -> Any:
        if item is None:
            return -1, None, None
        generation, key = item
        return generation, key, self._fetch[key]


class Agreement:
    """Compares the streams of all ranks, one step later, without blocking a step."""

    def __init__(self, rank_info: RankInfo, name: str) -> None:
        self._several, self._name = rank_info.world_size > 1, name
        self._exchange = LaterMax()

    def compare(self, *values: int) -> None:
        if self._several:
            self._exchange.send(torch.tensor([*values, *(-value for value in values)]))

    def check(self) -> None:
        """
        Raises:
            DataError: on all ranks, if the values of the last `compare` differ between ranks.
        """
        values = self._exchange.receive()
        if values is None:
            return
        largest, negated = values.chunk(2)
        if bool((largest + negated).any()):
            epoch, at, _ = largest.tolist()
            raise DataError(
                f"{self._name} yields other samples on other ranks: they differ at sample {max(at, 0)} of "
                f"epoch {epoch}, or the stream of one rank ended before.\n"
                "Yield all samples on every rank, in one order: clustertrain splits them among the ranks. "
                "Remove a split by rank. Random numbers of Python, numpy and torch are seeded for each epoch."
            )


def digest_of(sample: Any) -> int:
    """A number of 63 bits for the tensors, arrays, numbers and texts in a sample."""
    found = hashlib.blake2b(digest_size=8)
    leaves, structure = tree_flatten(sample)
    found.update(repr(structure).encode()[:_DIGESTED_BYTES])
    for leaf in leaves:
        value = leaf
        if isinstance(leaf, torch.Tensor):
            value = (leaf.float() if leaf.dtype == torch.bfloat16 else leaf).detach().cpu().numpy()
        if type(value).__module__ == "numpy" and hasattr(value, "tobytes") and not value.dtype.hasobject:
            found.update(value.tobytes()[:_DIGESTED_BYTES])
        elif isinstance(value, bytes):
            found.update(value[:_DIGESTED_BYTES])
        elif isinstance(value, str | int | float):
            found.update(repr(value).encode()[:_DIGESTED_BYTES])
    return int.from_bytes(found.digest(), "little") >> 1
