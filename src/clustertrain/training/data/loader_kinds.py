"""How each kind of data is read: a map-style data set, an IterableDataset, one that splits itself by rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from clustertrain.errors import JobError
from clustertrain.training.data.loading import Collate, Fetch, Loader
from clustertrain.training.data.sampling import (
    UNKNOWN,
    MicroBatch,
    Position,
    TrainOrder,
)
from clustertrain.training.data.split_stream import SplitStream, splits_itself
from clustertrain.training.data.streaming import (
    BatchOfStream,
    StreamFetch,
    is_stream,
    stream_batches,
)
from clustertrain.training.ranks.distributed import RankInfo, gather_objects
from clustertrain.training.ranks.rng import derive_seed
from clustertrain.training.task import Task, collate_of
from clustertrain.training.values import Batch, Dataset, State


def dataset_of(
    task: Task, method: str, data: Mapping[str, Path], rank_info: RankInfo, *, epochs: int | None
) -> tuple[Any, int]:
    """Return the data set of a task's `train_data` or `eval_data`, and the number of its samples.

    The number is UNKNOWN for a stream without a length. Without evaluation data the result is (None, 0).
    Every rank calls it.

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
    if is_stream(dataset):
        try:
            size = len(dataset)
        except TypeError:  # without __len__, or, as a ChainDataset, of streams without it
            size = UNKNOWN
        if size == UNKNOWN and is_evaluation:
            raise JobError(
                f"{name} returned {type(dataset).__name__}, a stream without __len__.\n"
                "An evaluation counts every sample once, so it needs their number: add __len__, or return "
                "a map-style dataset."
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
            "Return a map-style dataset or an IterableDataset."
        )
    else:
        size = len(dataset)
    size = size if size == UNKNOWN else samples_of(dataset, rank_info)
    if size == 0:
        raise JobError(f"{name} returned a data set of 0 samples.\nCheck its path under `data`.")
    return dataset, size


def samples_of(dataset: Dataset, rank_info: RankInfo) -> int:
    """Return the number of samples of all ranks together; all ranks call it.

    Of a stream that splits itself, each rank counts as many as the rank with the fewest.
    """
    if splits_itself(dataset):
        return min(gather_objects(len(dataset), rank_info)) * rank_info.world_size
    return len(dataset)


def split_of(
    task: Task, dataset: Dataset, state: State | None, start: Position, rank_info: RankInfo
) -> SplitStream | None:
    """Return the training data as a SplitStream at `start` of the checkpoint `state`, or None for other data.

    Raises: as SplitStream.resume.
    """
    if not splits_itself(dataset):
        return None
    split = SplitStream(dataset, collate_of(task), f"{type(task).__name__}.train_data()")
    if state is not None:
        split.resume(state, start, rank_info)
    return split


def weight_sums_of(task: Task, dataset: Dataset, size: int) -> torch.Tensor | None:
    """Return the sums of the weights with which a task draws its samples, or None if it takes each once.

    Raises:
        JobError: the data set cannot be drawn from, or a weight is not one.
    """
    if type(task).sample_weights is Task.sample_weights:
        return None
    name = f"{type(task).__name__}.sample_weights()"
    if is_stream(dataset):
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
    return weights.cumsum(0)


def loader_of(
    task: Task,
    dataset: Dataset,
    order: TrainOrder,
    rank_info: RankInfo,
    note: Callable[[str], None],
) -> Iterable[tuple[MicroBatch, Batch]]:
    """Return the batches of a rank, in its order, from a task's training data, which may be a SplitStream.

    Args:
        note: writes a line to the log.
    """
    collate, name = collate_of(task), f"{type(task).__name__}.train_data()"
    processes = order.settings.processes
    if isinstance(dataset, SplitStream):
        if processes:
            note(f"{name} has a state of its own: the worker itself reads it, without loader processes")
        return Loader(dataset, order, processes=0, device=rank_info.device, reuse=False)
    if is_stream(dataset):
        if processes > 1:
            note(f"{name} is an IterableDataset: one loader process reads it, not {processes}")
        stream = StreamFetch(
            dataset, collate, order.settings.seed, rank=rank_info.rank, world_size=rank_info.world_size
        )
        return stream_batches(stream, order, rank_info, processes=processes, name=name, note=note)
    return Loader(Fetch(dataset, collate), order, processes=processes, device=rank_info.device, reuse=False)


def evaluation_keys(
    dataset: Dataset, samples: int, batch_size: int, rank: int, world_size: int
) -> list[MicroBatch]:
    """Return one rank's batches of an evaluation of `samples` of the data set, all or fewer.

    The rank has the samples rank, rank + world_size and so on, so each sample is on exactly one rank. Ranks
    may differ by one sample, and so by one batch; with fewer samples than ranks some ranks have none.

    Fewer samples of a map-style data set are taken at equal distances: the first samples of a sorted one
    could have a single class, for which a metric may be undefined.
    """
    ids = list(range(rank, samples, world_size))
    if not is_stream(dataset):
        ids = [i * len(dataset) // samples for i in ids]
    starts = range(0, len(ids), batch_size)
    return [MicroBatch(ids[i : i + batch_size], derive_seed(rank, i), 1.0, None) for i in starts]


def processes_of(dataset: Dataset, processes: int) -> int:
    """Return how many of the loader processes of a rank read this data."""
    if splits_itself(dataset):
        return 0
    return min(processes, 1) if is_stream(dataset) else processes


def batch_fetch(dataset: Dataset, collate: Collate, name: str) -> Fetch | BatchOfStream | SplitStream:
    """Return an object whose `fetch[key]` is a batch, for an evaluation or a rehearsal."""
    if splits_itself(dataset):
        return SplitStream(dataset, collate, name, restarts=True)
    if is_stream(dataset):
        return BatchOfStream(StreamFetch(dataset, collate, 0), name)
    return Fetch(dataset, collate)


def sample_batch(dataset: Dataset, batch_size: int) -> MicroBatch:
    """Return the key of samples at equal distances over the data set, or of the first ones of a stream."""
    count = min(batch_size, len(dataset))
    ids = list(range(count)) if is_stream(dataset) else [i * len(dataset) // count for i in range(count)]
    return MicroBatch(ids, derive_seed(0), 1.0, None)
