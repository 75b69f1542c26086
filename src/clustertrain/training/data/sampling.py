"""Which samples a rank takes at which step.

An epoch is one order of all samples, the same on every rank. Each optimizer step takes the next
global_batch_size samples and splits them among the ranks. The consumed samples of an epoch are therefore
always a prefix of its order, for any number of ranks: a run that resumes with more or fewer ranks continues
in the same order, and no sample is used twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import torch

from clustertrain.errors import JobError
from clustertrain.training.ranks.rng import derive_seed
from clustertrain.training.settings import TrainSettings
from clustertrain.training.values import State

UNKNOWN = 1 << 62  # the number of samples of a stream without a length


@lru_cache(maxsize=2)  # the epoch of the loop, and that of the loader, which may be ahead
def epoch_order(seed: int, epoch: int, n: int, weight_sums: torch.Tensor | None = None) -> torch.Tensor:
    """Return the order of an epoch, int64 (n,), equal on every rank: a permutation of range(n), or draws.

    Args:
        weight_sums: float64 (n,), of the weights of each sample and those before it; for n draws with
            replacement, in proportion to the weights.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, epoch))
    if weight_sums is None:
        return torch.randperm(n, generator=generator)
    # torch.multinomial takes at most 2^24 samples.
    below = torch.nextafter(weight_sums[-1], torch.zeros((), dtype=torch.float64))  # a product rounds
    points = below * torch.rand(n, dtype=torch.float64, generator=generator)
    points, places = points.sort()  # four times as fast: neighbours are in the processor's caches
    drawn = torch.searchsorted(weight_sums, points, right=True)  # right: no sample of weight 0
    return torch.empty_like(drawn).scatter_(0, places, drawn)


@dataclass(frozen=True)
class Position:
    """The position of a run between two optimizer steps."""

    epoch: int = 0  # epochs completed
    offset: int = 0  # samples of the current epoch's order that are consumed
    step: int = 0  # optimizer steps done
    samples_seen: int = 0  # over all ranks and epochs
    missed_steps: int = 0  # of epochs in which a stream had fewer samples than its length says

    @classmethod
    def of(cls, state: State | None) -> Position:
        return cls(**state["position"]) if state is not None else cls()


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
        """Compute the batch sizes of a run from its settings, its ranks and the number of its samples.

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
            largest = samples // share
            fits = f"the largest batch_size that fits is {largest}" if largest else "even 1 does not fit"
            smaller = "batch" if largest else "accumulate"
            raise JobError(
                f"train: a step takes {sizes.global_batch_size} samples; the training data has {samples}.\n"
                f"batch_size {sizes.batch_size} × workers {world_size} × accumulate {settings.accumulate} "
                f"= {sizes.global_batch_size}; {fits}.\n"
                f"Use a smaller {smaller}, fewer workers or more data."
            )
        return sizes


class MicroBatch(NamedTuple):
    """One rank's samples for one forward pass."""

    ids: list[int]
    seed: int  # for random operations during the fetch
    share: float  # of the step's gradient; the shares of a step add up to 1
    after: Position | None  # on the last one of a step: the position after the step
    epoch: int = 0


@dataclass(frozen=True)
class TrainOrder:
    """One rank's micro-batches from `start` to the end of the run; it can be iterated repeatedly.

    The ids of a step are cut into `accumulate` pieces of batch_size × world_size, and rank r takes
    [r::world_size] of each piece. The last step of an epoch may be shorter: every rank then takes the same
    smaller number, and fewer than world_size samples per piece are left out of that epoch.

    With `settings.limit_batches` an epoch is only the first limit_batches × global_batch_size samples of its
    order, so at most limit_batches steps.

    With `is_stream` the order is that of the data itself, and `samples` may be UNKNOWN. With
    `weight_sums` an order has samples more than once.
    """

    settings: TrainSettings
    sizes: BatchSizes
    samples: int
    rank: int
    start: Position
    is_stream: bool = False
    weight_sums: torch.Tensor | None = None

    def __iter__(self) -> Iterator[MicroBatch]:
        position = self.settle(self.start)
        while not self.done(position):
            pieces = self._pieces(position)
            taken = sum(pieces)
            after = self._after(position, taken)
            first = position.offset
            for i, piece in enumerate(pieces):
                yield MicroBatch(
                    ids=self._ids(position.epoch, first, piece // self.sizes.world_size),
                    seed=derive_seed(self.settings.seed, position.epoch, position.offset, i, self.rank),
                    share=piece / taken,
                    after=after if i == len(pieces) - 1 else None,
                    epoch=position.epoch,
                )
                first += piece
            position = after

    def _ids(self, epoch: int, first: int, count: int) -> list[int]:
        """Return this rank's ids of a pass whose samples begin at place `first` of the epoch's order."""
        start, world_size = first + self.rank, self.sizes.world_size
        stop = start + count * world_size
        if self.is_stream:
            return [*range(start, stop, world_size)]
        order = epoch_order(self.settings.seed, epoch, self.samples, self.weight_sums)
        return order[start:stop:world_size].tolist()

    def _pieces(self, position: Position) -> list[int]:
        """Return the numbers of samples of the next step's forward passes, over all ranks."""
        world_size = self.sizes.world_size
        left = min(self.epoch_samples - position.offset, self.sizes.global_batch_size)
        full, rest = divmod(left, self.sizes.of_ranks)
        return [self.sizes.of_ranks] * full + (
            [rest // world_size * world_size] if rest >= world_size else []
        )

    def _after(self, position: Position, taken: int) -> Position:
        after = replace(
            position,
            offset=position.offset + taken,
            step=position.step + 1,
            samples_seen=position.samples_seen + taken,
        )
        return self.settle(after)

    def settle(self, position: Position) -> Position:
        """Return `position`, or the start of the next epoch if fewer samples are left than ranks."""
        if self.epoch_samples - position.offset < self.sizes.world_size:
            return replace(position, epoch=position.epoch + 1, offset=0)
        return position

    def after_early_end(self, position: Position) -> Position:
        """Return the start of the next epoch, where a stream ends before its length.

        The missed steps stay a part of `total_steps`, which a scheduler plans for: a run that resumes has the
        same plan.
        """
        missed = position.missed_steps
        if self.settings.steps is None:
            missed += self._steps_in(self.epoch_samples - position.offset)
        return replace(position, epoch=position.epoch + 1, offset=0, missed_steps=missed)

    def done(self, position: Position) -> bool:
        if self.settings.steps is not None:
            return position.step >= self.settings.steps
        return position.epoch >= (self.settings.epochs or 0)

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run, including those before `start`."""
        if self.settings.steps is not None:
            return self.settings.steps
        start = self.settle(self.start)
        planned = start.step + start.missed_steps
        whole_epochs = (self.settings.epochs or 0) - start.epoch - 1
        if whole_epochs < 0:
            return planned
        return (
            planned + self._steps_in(self.epoch_samples - start.offset) + whole_epochs * self.steps_per_epoch
        )

    @property
    def epoch_samples(self) -> int:
        """The length of the part of an epoch's order that is used, in samples."""
        limit = self.settings.limit_batches
        return self.samples if limit is None else min(self.samples, limit * self.sizes.global_batch_size)

    @property
    def limit_text(self) -> str:
        """The warning that limit_batches is set, or empty without it."""
        limit = self.settings.limit_batches
        if limit is None:
            return ""
        of_all = "" if self.samples == UNKNOWN else f" of {self.samples}"
        return (
            f"train.limit_batches is {limit}: an epoch has {self.steps_per_epoch} steps "
            f"({self.epoch_samples}{of_all} samples), an evaluation at most {limit} "
            "batches per worker; the results are of these samples, not of the whole data"
        )

    @property
    def steps_per_epoch(self) -> int:
        return self._steps_in(self.epoch_samples)

    def _steps_in(self, samples: int) -> int:
        full, rest = divmod(samples, self.sizes.global_batch_size)
        return full + (rest >= self.sizes.world_size)
