"""How the three kinds of data are read: a map-style data set, Shards, and an IterableDataset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from clustertrain.errors import JobError
from clustertrain.training.data.loader_processes import processes_for
from clustertrain.training.data.loading import Collate, Fetch, Loader, sent_copy
from clustertrain.training.data.sampling import (
    BatchSizes,
    MicroBatch,
    Position,
    TrainOrder,
    evaluation_order,
    limited,
    shard_evaluation_order,
    spread_batch,
)
from clustertrain.training.data.shard_order import Dealing
from clustertrain.training.data.shards import Shards
from clustertrain.training.data.streaming import (
    BatchOfStream,
    FirstOf,
    StreamFetch,
    StreamLoader,
    check_stream_length,
    is_stream,
    stream_size,
)
from clustertrain.training.ranks.distributed import RankInfo
from clustertrain.training.settings import TrainSettings
from clustertrain.training.task import Task, collate_of


def size_of(dataset: Any, name: str, *, epochs: int | None, is_evaluation: bool) -> int:
    """The number of samples of a data set that `name` returned; UNKNOWN for a stream without a length.

    Raises:
        JobError: it has no length or no items.
    """
    if is_stream(dataset):
        size = stream_size(dataset)
        if not is_evaluation:
            check_stream_length(size, epochs, name)
        elif not hasattr(dataset, "__len__"):
            raise JobError(
                f"{name} returned {type(dataset).__name__}, a stream without __len__.\n"
                "An evaluation counts every sample once, so it needs their number: add __len__, or return "
                "Shards or a map-style dataset."
            )
    elif not (
        hasattr(dataset, "__len__") and (hasattr(dataset, "__getitem__") or hasattr(dataset, "__getitems__"))
    ):
        raise JobError(
            f"{name} returned {type(dataset).__name__}, which lacks __len__ or __getitem__.\n"
            "Return a map-style dataset, clustertrain.Shards, or an IterableDataset."
        )
    else:
        size = len(dataset)
    if size == 0:
        raise JobError(f"{name} returned a data set of 0 samples.\nCheck its path under `data`.")
    return size


def order_of(
    dataset: Any, size: int, settings: TrainSettings, sizes: BatchSizes, *, rank: int, start: Position
) -> TrainOrder:
    """The order of a rank's training samples, of which there are `size`.

    Raises:
        JobError: there are fewer shards than ranks.
    """
    shards = None
    if isinstance(dataset, Shards):
        dataset.check_ranks(sizes.world_size)
        shards = dataset.order(settings.seed)
    return TrainOrder(
        sizes=sizes,
        samples=size,
        seed=settings.seed,
        rank=rank,
        epochs=settings.epochs,
        steps=settings.steps,
        start=start,
        limit_batches=settings.limit_batches,
        shards=shards,
        is_stream=is_stream(dataset),
    )


def loader_of(
    task: Task,
    dataset: Any,
    order: TrainOrder,
    settings: TrainSettings,
    rank_info: RankInfo,
    *,
    note: Callable[[str], None],
) -> tuple[Loader | StreamLoader, TrainSettings]:
    """The batches of a rank, in its order, of a task's training data; and the settings with the number of
    loader processes in place of "auto".

    Args:
        note: writes a line to the log.
    """
    collate, name = collate_of(task), f"{type(task).__name__}.train_data()"
    if settings.loader_workers == "auto":
        processes = _automatic_processes(dataset, collate, order, settings, rank_info, note=note)
        settings = replace(settings, loader_workers=processes)
    return _loader(dataset, collate, order, settings, rank_info, name=name, note=note), settings


def _loader(
    dataset: Any,
    collate: Collate,
    order: TrainOrder,
    settings: TrainSettings,
    rank_info: RankInfo,
    *,
    name: str,
    note: Callable[[str], None],
) -> Loader | StreamLoader:
    processes, device = settings.processes, rank_info.device
    if is_stream(dataset):
        if processes > 1:
            note(f"{name} is an IterableDataset: one loader process reads it, not {processes}")
        fetch = StreamFetch(
            dataset, collate, settings.seed, rank=rank_info.rank, world_size=rank_info.world_size
        )
        return StreamLoader(fetch, order, rank_info, processes=processes, name=name, note=note)
    if order.shards is not None:
        to = Dealing(order.sizes.world_size, order.sizes.batch_size)
        lanes = order.shards.batches(0, (), order.rank, to).number
        used = divisor_at_most(lanes, processes)
        if used < processes:
            note(f"{name}: {used} of {processes} loader processes; a worker reads {lanes} shards at a time")
        processes = used
    return Loader(Fetch(dataset, collate), order, processes=processes, device=device, reuse=False)


def _automatic_processes(
    dataset: Any,
    collate: Collate,
    order: TrainOrder,
    settings: TrainSettings,
    rank_info: RankInfo,
    *,
    note: Callable[[str], None],
) -> int:
    """0 on a CPU, and for a stream, of which a timed batch would be lost. Shards are not timed."""
    if rank_info.device.type != "cuda" or is_stream(dataset):
        return 0
    keys = None if order.shards is not None else order
    processes, why = processes_for(Fetch(dataset, collate), keys, settings.cpus, sent_copy)
    note(why)
    return processes


def divisor_at_most(number: int, most: int) -> int:
    """The largest divisor of `number` up to `most`, or 0 for 0."""
    return max((n for n in range(1, most + 1) if number % n == 0), default=0)


def evaluated_part(dataset: Any, limit_batches: int | None, sizes: BatchSizes) -> Any:
    """`dataset`, or at most `limit_batches` batches per rank of it."""
    if limit_batches is None or (not isinstance(dataset, Shards) and not is_stream(dataset)):
        return limited(dataset, limit_batches, sizes)
    samples = min(len(dataset), limit_batches * sizes.of_ranks)
    return dataset.limited(samples) if isinstance(dataset, Shards) else FirstOf(dataset, samples)


def evaluation_keys(dataset: Any, batch_size: int, rank: int, world_size: int) -> list[MicroBatch]:
    """One rank's batches of an evaluation."""
    if isinstance(dataset, Shards):
        return shard_evaluation_order(dataset.in_order(), batch_size, rank, world_size)
    return evaluation_order(len(dataset), batch_size, rank, world_size)


def evaluation_processes(dataset: Any, processes: int) -> int:
    """The number of loader processes of an evaluation: each would read all of a stream."""
    return min(processes, 1) if is_stream(dataset) else processes


def batch_fetch(dataset: Any, collate: Collate, name: str) -> Fetch | BatchOfStream:
    """`fetch[key]` is a batch, for an evaluation or a rehearsal."""
    if is_stream(dataset):
        return BatchOfStream(StreamFetch(dataset, collate, 0), name)
    return Fetch(dataset, collate)


def sample_batch(dataset: Any, batch_size: int) -> MicroBatch:
    """A batch of samples at equal distances over the data set; the first ones of shards and streams."""
    if isinstance(dataset, Shards) or is_stream(dataset):
        return MicroBatch(list(range(min(batch_size, len(dataset)))), 0, 1.0, None)
    return spread_batch(len(dataset), batch_size)
