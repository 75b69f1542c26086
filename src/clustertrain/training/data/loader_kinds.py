"""How the three kinds of data are read: a map-style data set, Shards, and an IterableDataset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from clustertrain.errors import JobError
from clustertrain.training.data.loader_processes import processes_for
from clustertrain.training.data.loading import Collate, Fetch, Loader
from clustertrain.training.data.sampling import (
    UNKNOWN,
    BatchSizes,
    Draws,
    MicroBatch,
    Position,
    TrainOrder,
    evaluation_order,
    shard_evaluation_order,
)
from clustertrain.training.data.shard_order import Dealing, divisor_at_most
from clustertrain.training.data.shards import Shards
from clustertrain.training.data.streaming import (
    BatchOfStream,
    StreamFetch,
    is_stream,
    stream_batches,
)
from clustertrain.training.ranks.distributed import RankInfo
from clustertrain.training.ranks.rng import derive_seed
from clustertrain.training.settings import TrainSettings
from clustertrain.training.task import Task, collate_of


def dataset_of(
    task: Task, method: str, data: Mapping[str, Path], rank_info: RankInfo, *, epochs: int | None
) -> tuple[Any, int]:
    """What `train_data` or `eval_data` of a task returns, and the number of its samples: UNKNOWN for a stream
    without a length. (None, 0) without evaluation data. Every rank calls it.

    Raises:
        JobError: it has no length or no items.
    """
    dataset, name = getattr(task, method)(data), f"{type(task).__name__}.{method}()"
    is_evaluation = method == "eval_data"
    if dataset is None and is_evaluation:
        return None, 0
    if isinstance(dataset, DataLoader):
        raise JobError(
            f"{name} returned a DataLoader: clustertrain makes the batches itself, a part for each rank.\n"
            "Return its data set. batch_size and loader_workers are keys of `train`; methods of the Task are "
            "collate(samples) and, for a WeightedRandomSampler, sample_weights(dataset)."
        )
    if isinstance(dataset, Shards):
        dataset.count(rank_info)
    if is_stream(dataset):
        try:
            size = len(dataset)
        except TypeError:  # without __len__, or, as a ChainDataset, of streams without it
            size = UNKNOWN
        if size == UNKNOWN and is_evaluation:
            raise JobError(
                f"{name} returned {type(dataset).__name__}, a stream without __len__.\n"
                "An evaluation counts every sample once, so it needs their number: add __len__, or return "
                "Shards or a map-style dataset."
            )
        if size == UNKNOWN and epochs is not None:
            raise JobError(
                f"train.epochs is {epochs}, but {name} returned a stream without __len__: the number of "
                "steps is not known.\n"
                "Set train.steps instead, or give the data set a __len__: its samples per epoch."
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
    return dataset, size


def order_of(
    dataset: Any,
    size: int,
    settings: TrainSettings,
    sizes: BatchSizes,
    *,
    rank: int,
    start: Position,
    draws: Draws | None = None,
) -> TrainOrder:
    """The order of a rank's training samples, of which there are `size`.

    Raises:
        JobError: there are fewer shards than ranks.
    """
    shards = None
    if isinstance(dataset, Shards):
        dataset.check_ranks(sizes.world_size)
        shards = dataset.order(settings.seed)
    return TrainOrder(settings, sizes, size, rank, start, shards, is_stream(dataset), draws)


def draws_of(task: Task, dataset: Any, size: int) -> Draws | None:
    """How a task draws its training samples, or None if it takes each once.

    Raises:
        JobError: the data set cannot be drawn from, or a weight is not one.
    """
    if type(task).sample_weights is Task.sample_weights:
        return None
    name = f"{type(task).__name__}.sample_weights()"
    if isinstance(dataset, Shards) or is_stream(dataset):
        raise JobError(
            f"{name} needs a map-style data set, and train_data() returned {type(dataset).__name__}, whose "
            "samples are read in turn.\nReturn a map-style data set, or weight the loss instead."
        )
    if (given := task.sample_weights(dataset)) is None:
        return None
    weights = torch.as_tensor(given, dtype=torch.float64, device="cpu")
    if weights.shape != (size,):
        raise JobError(
            f"{name} returned shape {tuple(weights.shape)} for {size} samples.\n"
            f"Return one weight for each sample: shape ({size},)."
        )
    wrong = (~weights.isfinite() | (weights < 0)).nonzero()
    total = float(weights.sum())
    if len(wrong) or not 0 < total < float("inf"):
        i = int(wrong[0]) if len(wrong) else 0
        found = f"{weights[i]:g} for sample {i}" if len(wrong) else f"weights whose sum is {total:g}"
        raise JobError(
            f"{name} returned {found}.\nWeights are finite and not negative, and their sum is above 0."
        )
    return Draws(weights.cumsum(0))


def loader_of(
    task: Task, dataset: Any, order: TrainOrder, rank_info: RankInfo, note: Callable[[str], None]
) -> tuple[Iterable[tuple[MicroBatch, Any]], TrainSettings]:
    """The batches of a rank, in its order, of a task's training data; and the settings with the number of
    loader processes in place of "auto".

    Args:
        note: writes a line to the log.
    """
    collate, name = collate_of(task), f"{type(task).__name__}.train_data()"
    fetch, settings = Fetch(dataset, collate), order.settings
    if settings.loader_workers == "auto":
        processes = 0  # on a CPU, and for a stream, of which a timed batch would be lost
        if rank_info.device.type == "cuda" and not is_stream(dataset):
            keys = None if order.shards is not None else order  # shards are not timed
            processes, why = processes_for(fetch, keys, settings.cpus)
            note(why)
        settings = replace(settings, loader_workers=processes)
    processes = settings.processes
    if is_stream(dataset):
        if processes > 1:
            note(f"{name} is an IterableDataset: one loader process reads it, not {processes}")
        stream = StreamFetch(
            dataset, collate, settings.seed, rank=rank_info.rank, world_size=rank_info.world_size
        )
        return stream_batches(stream, order, rank_info, processes=processes, name=name, note=note), settings
    if order.shards is not None:
        to = Dealing(order.sizes.world_size, order.sizes.batch_size)
        lanes = order.shards.batches(0, (), order.rank, to).number
        used = divisor_at_most(lanes, processes)
        if used < processes:
            note(f"{name}: {used} of {processes} loader processes; a worker reads {lanes} shards at a time")
        processes = used
    return Loader(fetch, order, processes=processes, device=rank_info.device, reuse=False), settings


def evaluation_keys(
    dataset: Any, samples: int, batch_size: int, rank: int, world_size: int
) -> list[MicroBatch]:
    """One rank's batches of an evaluation of `samples` of the data set, all or fewer.

    Fewer of a map-style data set have equal distances in it: the first samples of a sorted one could have a
    single class, for which a metric may be undefined.
    """
    if isinstance(dataset, Shards):
        return shard_evaluation_order(dataset.in_order(samples), batch_size, rank, world_size)
    keys = evaluation_order(samples, batch_size, rank, world_size)
    if is_stream(dataset) or samples == len(dataset):
        return keys
    return [key._replace(ids=[i * len(dataset) // samples for i in key.ids]) for key in keys]


def batch_fetch(dataset: Any, collate: Collate, name: str) -> Fetch | BatchOfStream:
    """`fetch[key]` is a batch, for an evaluation or a rehearsal."""
    if is_stream(dataset):
        return BatchOfStream(StreamFetch(dataset, collate, 0), name)
    return Fetch(dataset, collate)


def sample_batch(dataset: Any, batch_size: int) -> MicroBatch:
    """A batch of samples at equal distances over the data set, or the first ones of shards and streams; the
    same on every rank."""
    count = min(batch_size, len(dataset))
    in_turn = isinstance(dataset, Shards) or is_stream(dataset)
    ids = list(range(count)) if in_turn else [i * len(dataset) // count for i in range(count)]
    return MicroBatch(ids, derive_seed(0), 1.0, None)
