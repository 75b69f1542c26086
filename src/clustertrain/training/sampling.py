"""Which samples a rank takes at which step.

An epoch is one order of all samples, the same on every rank. Each optimizer step takes the next
global_batch_size samples and splits them among the ranks. The consumed samples of an epoch are therefore
always a prefix of its order, for any number of ranks: a run that resumes with more or fewer ranks continues
in the same order, and no sample is used twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch.utils.data import Subset

from clustertrain.errors import JobError
from clustertrain.training.rng import derive_seed
from clustertrain.training.settings import TrainSettings


@lru_cache(maxsize=2)  # the epoch of the loop, and that of the loader, which may be ahead
def epoch_order(seed: int, epoch: int, n: int) -> torch.Tensor:
    """The order of an epoch: a permutation of range(n), int64 (n,), the same on every rank."""
    generator = torch.Generator().manual_seed(derive_seed(seed, epoch))
    return torch.randperm(n, generator=generator)


@dataclass(frozen=True)
class Position:
    """The position of a run between two optimizer steps."""

    epoch: int = 0  # epochs completed
    offset: int = 0  # samples of the current epoch's order that are consumed
    step: int = 0  # optimizer steps done
    samples_seen: int = 0  # over all ranks and epochs

    @classmethod
    def of(cls, state: dict[str, Any] | None) -> Position:
        return cls(**state["position"]) if state else cls()

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True)
class BatchSizes:
    """global_batch_size = batch_size × world_size × accumulate."""

    batch_size: int
    world_size: int
    accumulate: int

    @property
    def of_ranks(self) -> int:
        """Samples per forward pass over all ranks."""
        return self.batch_size * self.world_size

    @property
    def global_batch_size(self) -> int:
        return self.of_ranks * self.accumulate

    @classmethod
    def of(cls, settings: TrainSettings, world_size: int, samples: int) -> BatchSizes:
        """
        Raises:
            JobError: global_batch_size is not divisible, or one step needs more samples than there are.
        """
        share, total = world_size * settings.accumulate, settings.global_batch_size
        if total is not None and total % share:
            below, above = total // share * share, (total // share + 1) * share
            raise JobError(
                f"train.global_batch_size is {total}, not a multiple of workers × accumulate.\n"
                f"{world_size} × {settings.accumulate} = {share}; {total} % {share} is {total % share}.\n"
                f"Nearest that fit: {f'{below} and ' if below else ''}{above}."
            )
        sizes = cls(settings.batch_size or (total or 0) // share, world_size, settings.accumulate)
        if sizes.global_batch_size > samples:
            raise JobError(
                f"train: a step takes {sizes.global_batch_size} samples; the training data has {samples}.\n"
                f"batch_size {sizes.batch_size} × workers {world_size} × accumulate {settings.accumulate} "
                f"= {sizes.global_batch_size}; the largest batch_size that fits is {samples // share}.\n"
                "Use a smaller batch, fewer workers or more data."
            )
        return sizes


class MicroBatch(NamedTuple):
    """One rank's samples for one forward pass."""

    ids: list[int]
    seed: int  # for random operations during the fetch
    share: float  # of the step's gradient; the shares of a step add up to 1
    after: Position | None  # on the last one of a step: the position after the step


@dataclass(frozen=True)
class TrainOrder:
    """One rank's micro-batches from `start` to the end of the run; it can be iterated repeatedly.

    The ids of a step are cut into `accumulate` pieces of batch_size × world_size, and rank r takes
    [r::world_size] of each piece. The last step of an epoch may be shorter: every rank then takes the same
    smaller number, and fewer than world_size samples per piece are left out of that epoch.

    With `limit_batches` an epoch is only the first limit_batches × global_batch_size samples of its order, so
    at most limit_batches steps.
    """

    sizes: BatchSizes
    samples: int
    seed: int
    rank: int
    epochs: int | None
    steps: int | None
    start: Position
    limit_batches: int | None = None

    def __iter__(self) -> Iterator[MicroBatch]:
        position = self.settle(self.start)
        while not self.done(position):
            order = epoch_order(self.seed, position.epoch, self.samples)
            ids = order[position.offset : self.epoch_samples]
            parts = [
                part[: len(part) // self.sizes.world_size * self.sizes.world_size]
                for part in torch.split(ids[: self.sizes.global_batch_size], self.sizes.of_ranks)
                if len(part) >= self.sizes.world_size
            ]
            taken = sum(len(part) for part in parts)
            after = self._after(position, taken)
            for i, part in enumerate(parts):
                yield MicroBatch(
                    ids=part[self.rank :: self.sizes.world_size].tolist(),
                    seed=derive_seed(self.seed, position.epoch, position.offset, i, self.rank),
                    share=len(part) / taken,
                    after=after if i == len(parts) - 1 else None,
                )
            position = after

    def _after(self, position: Position, taken: int) -> Position:
        return self.settle(
            Position(
                position.epoch, position.offset + taken, position.step + 1, position.samples_seen + taken
            )
        )

    def settle(self, position: Position) -> Position:
        """`position`, or the start of the next epoch if fewer samples are left than there are ranks."""
        if self.epoch_samples - position.offset < self.sizes.world_size:
            return replace(position, epoch=position.epoch + 1, offset=0)
        return position

    def done(self, position: Position) -> bool:
        if self.steps is not None:
            return position.step >= self.steps
        return position.epoch >= (self.epochs or 0)

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run, including those before `start`."""
        if self.steps is not None:
            return self.steps
        start = self.settle(self.start)
        whole_epochs = (self.epochs or 0) - start.epoch - 1
        if whole_epochs < 0:
            return start.step
        return (
            start.step
            + self._steps_in(self.epoch_samples - start.offset)
            + whole_epochs * self.steps_per_epoch
        )

    @property
    def epoch_samples(self) -> int:
        """The length of the part of an epoch's order that is used, in samples."""
        if self.limit_batches is None:
            return self.samples
        return min(self.samples, self.limit_batches * self.sizes.global_batch_size)

    @property
    def limit_text(self) -> str:
        """The warning that limit_batches is set; empty without it."""
        if self.limit_batches is None:
            return ""
        return (
            f"train.limit_batches is {self.limit_batches}: an epoch has {self.steps_per_epoch} steps "
            f"({self.epoch_samples} of {self.samples} samples), an evaluation at most {self.limit_batches} "
            "batches per worker; the results are of these samples, not of the whole data"
        )

    @property
    def steps_per_epoch(self) -> int:
        return self._steps_in(self.epoch_samples)

    def _steps_in(self, samples: int) -> int:
        full, rest = divmod(samples, self.sizes.global_batch_size)
        return full + (rest >= self.sizes.world_size)


def limited(dataset: Any, limit_batches: int | None, sizes: BatchSizes) -> Any:
    """`dataset`, or at most `limit_batches` batches per rank of its samples.

    They have equal distances in the data set: the first samples of a sorted one could have a single class,
    for which a metric may be undefined.
    """
    everything = len(dataset)
    count = everything if limit_batches is None else min(everything, limit_batches * sizes.of_ranks)
    if count == everything:
        return dataset
    return Subset(dataset, [i * everything // count for i in range(count)])


def evaluation_order(samples: int, batch_size: int, rank: int, world_size: int) -> list[MicroBatch]:
    """One rank's batches of an evaluation: ids rank, rank + world_size, … Each sample is on exactly one rank.

    Ranks may differ by one sample, and so by one batch; with fewer samples than ranks some ranks have none.
    """
    ids = range(rank, samples, world_size)
    return [
        MicroBatch(list(ids[i : i + batch_size]), derive_seed(rank, i), 1.0, None)
        for i in range(0, len(ids), batch_size)
    ]


def spread_batch(samples: int, batch_size: int) -> MicroBatch:
    """One batch of samples at equal distances over the data set, the same on every rank."""
    count = min(batch_size, samples)
    return MicroBatch([i * samples // count for i in range(count)], derive_seed(0), 1.0, None)
