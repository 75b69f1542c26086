"""From sample ids to a batch on the device.

A batch is fetched as a whole by the same function, in this process or in a loader process. The random
generators are seeded from the batch before. So random operations of a dataset have the same results in every
process, and after every resume.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from multiprocessing.queues import Queue
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset, default_collate

from clustertrain.errors import ClusterTrainError, JobError
from clustertrain.training.data.sampling import MicroBatch
from clustertrain.training.nested_tensors import map_tensors
from clustertrain.training.ranks.rng import private_rng
from clustertrain.training.values import Batch, Dataset, Sample

Collate = Callable[[list[Sample]], Batch]


class Fetch:
    """`fetch[key]` is the batch of a MicroBatch, on the CPU.

    A TensorDataset is indexed once per batch. For a dataset with `__getitems__` there is one call per batch,
    for any other dataset one call per sample.
    """

    def __init__(self, dataset: Dataset, collate: Collate) -> None:
        self._dataset = dataset
        self._collate = collate
        self._is_tensors = collate is default_collate and type(dataset) is TensorDataset

    def __getitem__(self, key: MicroBatch) -> Batch:
        if self._is_tensors:
            ids = torch.tensor(key.ids)
            return [tensor[ids] for tensor in self._dataset.tensors]
        with private_rng(key.seed):
            if hasattr(self._dataset, "__getitems__"):
                samples = self._dataset.__getitems__(key.ids)
            else:
                samples = [self._dataset[i] for i in key.ids]
            return self._collate(samples)


class Loader:
    """Iterates over (micro-batch, batch on the device), in the order of `keys`.

    Args:
        fetch: Fetch, or another object whose `fetch[key]` is a batch on the CPU.
        processes: 0 loads in this process; a GPU computes the previous step meanwhile, because nothing waits
            for it. Each loader process prepares two batches ahead.
        reuse: keep the processes for repeated iterations.
    """

    def __init__(
        self, fetch: Dataset, keys: Iterable[MicroBatch], *, processes: int, device: torch.device, reuse: bool
    ) -> None:
        self._fetch = fetch
        self._keys = keys
        self._copied = CopyToDevice(device)
        self._loader = loader_with_processes(fetch, keys, processes, device, reuse) if processes else None

    def __iter__(self) -> Iterator[tuple[MicroBatch, Batch]]:
        if self._loader is None:
            for key in self._keys:
                yield key, self._copied(self._fetch[key])
            return
        for batch, key in zip(loaded(self._loader), self._keys, strict=True):
            yield key, self._copied(batch)


class CopyToDevice:
    """Copies a batch to the device: `copy(batch)`.

    A GPU copies it on a stream of its own, while it computes the step before; what is queued from then on
    waits for the copy.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def __call__(self, batch: Batch) -> Batch:
        if self._stream is None:
            return to_device(batch, self._device)
        current = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            batch = to_device(batch, self._device)
        current.wait_stream(self._stream)

        def used_later(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.is_cuda:
                tensor.record_stream(current)  # its memory is not given to the next copy before it was used
            return tensor

        return map_tensors(batch, used_later)


class _Sent:
    """A fetch whose errors of clustertrain are values: DataLoader would put a traceback in their text."""

    def __init__(self, fetch: Dataset) -> None:
        self._fetch = fetch

    def __getitem__(self, key: object) -> Batch:
        try:
            return self._fetch[key]
        except ClusterTrainError as error:
            return error
        except StopIteration as error:  # which DataLoader would take for the end of the data
            raise RuntimeError("the data set raised StopIteration") from error


def loader_with_processes(
    fetch: Dataset, keys: Iterable[object], processes: int, device: torch.device, reuse: bool
) -> DataLoader[Batch]:
    """Return a DataLoader of `fetch[key]` for each key; `loaded` iterates over it."""
    # forkserver: this process has threads (Ray's, gloo's, CUDA's), and a fork of it could inherit a locked
    # lock. The server starts without threads, imports torch once, and forks the loader processes.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    return DataLoader(
        _Sent(fetch),  # type: ignore[arg-type]  # the sampler yields keys, not numbers
        batch_size=None,
        sampler=keys,
        num_workers=processes,
        collate_fn=_as_it_is,
        pin_memory=device.type == "cuda",
        persistent_workers=reuse,
        multiprocessing_context=context,
        worker_init_fn=_end_with_a_lost_batch,
        generator=torch.Generator(),  # otherwise it draws from the training's generator
    )


def _end_with_a_lost_batch(worker_id: int) -> None:
    """End the loader process if a batch cannot be sent: /dev/shm is full, or no file can be opened.

    Python's queue would drop the batch, and training would wait for it forever.
    """

    def end(error: BaseException, batch: Batch) -> None:
        traceback.print_exception(error)
        sys.stderr.flush()
        os._exit(1)

    Queue._on_queue_feeder_error = staticmethod(end)  # type: ignore[attr-defined]  # made to be overridden


def _as_it_is(batch: Batch) -> Any:
    return batch


def loaded(loader: DataLoader[Batch]) -> Iterator[Batch]:
    """Yield the values of a loader with processes, and raise an error that a process sent."""
    try:
        values = iter(loader)
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise _unpicklable(loader.num_workers, error) from error
    for value in values:
        if isinstance(value, ClusterTrainError):
            raise value
        yield value


def sent_copy(fetch: Dataset, processes: int = 1, file: BytesIO | None = None) -> Dataset:
    """Return the copy of `fetch` that a loader process gets.

    Here the copy shares tensors and arrays with `fetch`: they always pickle, and may be large.

    Args:
        file: takes the bytes of all else.

    Raises:
        JobError: the data set or the collate function cannot be pickled.
    """
    file, arrays = file or BytesIO(), []
    pickler = ForkingPickler(file)

    def left_out(value: Any) -> int | None:
        is_array = any(f"{cls.__module__}.{cls.__name__}" == "numpy.ndarray" for cls in type(value).__mro__)
        if not is_array and not isinstance(value, torch.Tensor):
            return None
        arrays.append(value)
        return len(arrays) - 1

    pickler.persistent_id = left_out  # type: ignore[method-assign]  # made to be replaced
    try:
        pickler.dump(fetch)
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise _unpicklable(processes, error) from error
    file.seek(0)
    unpickler = pickle.Unpickler(file)
    unpickler.persistent_load = arrays.__getitem__  # type: ignore[method-assign]  # made to be replaced
    return unpickler.load()


def _unpicklable(processes: int, error: Exception) -> JobError:
    return JobError(
        f"train.loader_workers is {processes}, but the data set cannot be pickled:\n"
        f"{error}\n"
        "Define its classes and functions at the top of a module, or set loader_workers: 0."
    )


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return `batch` with its tensors on `device`; to a GPU from pinned memory, without waiting."""

    def move(tensor: torch.Tensor) -> torch.Tensor:
        if device.type == "cuda" and tensor.device.type == "cpu" and not tensor.is_pinned():
            tensor = tensor.pin_memory()
        return tensor.to(device, non_blocking=True)

    return batch if device.type == "cpu" else map_tensors(batch, move)
