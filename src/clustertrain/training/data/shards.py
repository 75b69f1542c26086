"""Shards: training or evaluation data in WebDataset shards, each rank and loader process reads its part.

It is a data set with a length, so an epoch, a resume and the equal numbers of steps of all ranks need no
communication: shard_order.py computes the ids of each batch, and a reader goes forward in its shard to them.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from clustertrain.errors import DataError, JobError
from clustertrain.training.data.shard_order import LANES, ShardOrder, shard_of
from clustertrain.training.data.tar_shard import (
    Opener,
    Sample,
    count_samples,
    decoded,
    expanded,
    open_local,
    samples_of,
    shown,
)
from clustertrain.training.ranks.distributed import RankInfo, gather_objects

SHUFFLE = 1000  # samples
INDEX = "index.json"

Decode = Callable[[str, bytes], Any]


class _Opener:
    """How shards are opened in this process: clustertrain's workers read S3 and the web as well."""

    function: Opener = staticmethod(open_local)


def set_opener(opener: Opener) -> None:
    """Open the shards of this process's data sets with `opener`, which is pickled to loader processes."""
    _Opener.function = staticmethod(opener)


class Shards(Dataset[Any]):
    """The samples of WebDataset shards, for `Task.train_data` and `Task.eval_data`.

        def train_data(self, data):
            return Shards(data["photos"], decode="torchrgb", transform=self.pair)

    Args:
        shards: a folder, whose `*.tar` are the shards; a path or URL with braces, such as
            "s3://bucket/train-{0000..0127}.tar"; a list of these; or the path or URL of an index.
        index: the numbers of samples: the path or URL of an index, which is a JSON file
            {"shardlist": [{"url": "a.tar", "nsamples": 1000}, …]}; or a mapping from file names to numbers.
            In a folder, its `index.json` is used. Without an index, local shards are counted at the start.
        decode: decodes the files of a sample: webdataset's name for images ("rgb", "torchrgb", "pil"), a
            function of (extension with its dot, bytes) that returns None for what is not its own, or a list
            of both. txt, cls, json and npy are decoded in any case. None: all stays bytes.
        transform: makes a sample of the dict of decoded files by extension, with `__key__`. It is pickled to
            loader processes.
        shuffle: the samples that are shuffled together: so many consecutive ones of a shard, which a reader
            keeps in memory as bytes. The shards are permuted as well. With 0 all stays in its order.

    Raises:
        JobError: the `webdataset` package or the number of samples is missing, or nothing matches.
        DataError: a shard is torn, or the index is wrong.
    """

    def __init__(
        self,
        shards: str | Path | Sequence[str | Path],
        *,
        index: str | Path | Mapping[str, int] | None = None,
        decode: str | Decode | Sequence[str | Decode] | None = (),
        transform: Callable[[Sample], Any] | None = None,
        shuffle: int = SHUFFLE,
    ) -> None:
        _check_installed()
        self._open = _Opener.function
        self._transform = transform
        self._handlers = None if decode is None else _handlers(decode)
        self.shuffle = shuffle
        self.names, self._counts = _found(shards, index, self._open)
        self._readers: OrderedDict[int, _Reader] = OrderedDict()

    def __len__(self) -> int:
        return sum(self.counts)

    @property
    def counts(self) -> list[int]:
        """The number of samples of each shard."""
        for i, count in enumerate(self._counts):
            if count is None:
                self._counts[i] = count_samples(self.names[i], self._open)
        return [count or 0 for count in self._counts]

    @cached_property
    def _starts(self) -> list[int]:
        """The number of the first sample of each shard, then that of all samples."""
        return list(accumulate(self.counts, initial=0))

    def count(self, rank_info: RankInfo) -> None:
        """Count the samples of the shards that have no number in the index; each rank counts some of them.

        Raises:
            DataError: a shard is torn, on all ranks.
        """
        unknown = [i for i, count in enumerate(self._counts) if count is None]
        found: dict[int, int] = {}
        failed = ""
        try:
            for i in unknown[rank_info.rank :: rank_info.world_size]:
                found[i] = count_samples(self.names[i], self._open)
        except DataError as error:
            failed = str(error)
        for of_rank, text in gather_objects((found, failed), rank_info):
            if text:
                raise DataError(text)
            for i, count in of_rank.items():
                self._counts[i] = count

    def order(self, seed: int) -> ShardOrder:
        return ShardOrder(tuple(self.counts), self.shuffle, seed)

    def in_order(self, samples: int) -> ShardOrder:
        """The order of an evaluation, that of the shards: the first samples of each, `samples` in all."""
        counts = tuple(self.counts)
        ends = [end * samples // sum(counts) for end in accumulate(counts, initial=0)]
        return ShardOrder(counts, 0, 0, tuple(end - start for start, end in pairwise(ends)))

    def check_ranks(self, world_size: int) -> None:
        """
        Raises:
            JobError: there are fewer shards than ranks.
        """
        if len(self.names) < world_size:
            raise JobError(
                f"{world_size} workers are to read {len(self.names)} shards, such as {shown(self.names[0])}: "
                f"each worker needs one of its own; {world_size} > {len(self.names)}.\n"
                f"Write the data as at least {world_size} shards, or set resources.workers to at most "
                f"{len(self.names)}."
            )

    def __getitem__(self, sample: int) -> Any:
        return self.__getitems__([sample])[0]

    def __getitems__(self, ids: Sequence[int]) -> list[Any]:
        """The samples of `ids`. They are fast in the order of `order`: a reader only goes forward.

        Raises:
            DataError: a shard is torn, has fewer samples than its number, or a sample cannot be decoded.
        """
        samples = []
        for i in ids:
            shard = shard_of(self._starts, i)
            sample = self._raw(shard, i - self._starts[shard])
            if self._handlers is not None:
                sample = decoded(sample, self._handlers)
            samples.append(sample if self._transform is None else self._transform(sample))
        return samples

    def _raw(self, shard: int, number: int) -> Sample:
        reader = self._readers.pop(shard, None)
        if reader is None or not reader.has(number):
            if reader is not None:
                reader.close()
            count = self._starts[shard + 1] - self._starts[shard]
            reader = _Reader(self.names[shard], self._open, count, self.shuffle)
        sample = reader.read(number)
        if reader.is_done:
            reader.close()
        else:
            self._readers[shard] = reader
        while len(self._readers) > LANES:
            _, oldest = self._readers.popitem(last=False)
            oldest.close()
        return sample

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_readers": OrderedDict()}


class _Reader:
    """Reads one shard forward; keeps the samples of the current block that were not requested yet."""

    def __init__(self, name: str, opener: Opener, count: int, block: int) -> None:
        self._name, self._count, self._block = name, count, max(1, block)
        self._samples = samples_of(name, opener)
        self._next = 0
        self._kept: dict[int, Sample] = {}

    def has(self, number: int) -> bool:
        return number >= self._next or number in self._kept

    def read(self, number: int) -> Sample:
        block = number // self._block
        if self._next <= number:
            self._kept = {i: sample for i, sample in self._kept.items() if i // self._block == block}
        while self._next <= number:
            sample = next(self._samples, None)
            if sample is None:
                raise DataError(
                    f"The shard {shown(self._name)} has {self._next} samples; its index has {self._count}.\n"
                    "Correct the index, or write the shard again, and continue the run."
                )
            if self._next // self._block == block:
                self._kept[self._next] = sample
            self._next += 1
        if self._next == self._count and next(self._samples, None) is not None:  # it checks the end mark too
            raise DataError(
                f"The shard {shown(self._name)} has more samples than the {self._count} of its index.\n"
                "Correct the index, and continue the run."
            )
        return self._kept.pop(number)

    @property
    def is_done(self) -> bool:
        return self._next == self._count and not self._kept

    def close(self) -> None:
        self._samples.close()  # type: ignore[attr-defined]  # a generator


def _found(
    shards: str | Path | Sequence[str | Path], index: str | Path | Mapping[str, int] | None, opener: Opener
) -> tuple[list[str], list[int | None]]:
    """(the names of the shards, the number of samples of each, where it is known)."""
    given = [shards] if isinstance(shards, str | Path) else list(shards)
    if len(given) == 1 and str(given[0]).endswith(".json"):
        listed = _read_index(str(given[0]), opener)
        return list(listed), list(listed.values())
    names = [name for each in given for name in expanded(str(each))]
    if not names:
        raise JobError("Shards was given no shard.\nGive a folder, or a path or URL of shards.")
    if index is None and len(given) == 1 and Path(str(given[0]), INDEX).is_file():
        index = Path(str(given[0]), INDEX)
    if index is None:
        listed = {}
    elif isinstance(index, Mapping):
        listed = {name: int(count) for name, count in index.items()}
    else:
        listed = _read_index(str(index), opener)
    known = {_file_name(name): count for name, count in listed.items()} | listed
    counts = [known.get(name, known.get(_file_name(name))) for name in names]
    lacking = [name for name, count in zip(names, counts, strict=True) if count is None]
    if remote := [name for name in lacking if "://" in name]:
        raise JobError(
            f"The number of samples of {len(remote)} of {len(names)} shards is not known, such as "
            f"{shown(remote[0])}. The order and a resume are computed from these numbers.\n"
            "Write an index once, and give it as `index`: "
            "python -m clustertrain.worker.data.shard_index 'URL-{000..127}.tar' > index.json"
        )
    if lacking and known:
        raise DataError(
            f"The index has no number for {len(lacking)} of {len(names)} shards, such as {lacking[0]}.\n"
            "Write the index again, or remove it: local shards are then counted."
        )
    return names, counts


def _read_index(name: str, opener: Opener) -> dict[str, int]:
    """The numbers of samples by the names of the shards; relative names are those beside the index."""
    folder = name.rpartition("/")[0]
    try:
        with opener(name) as file:
            entries = json.loads(file.read())["shardlist"]
        listed = {str(entry["url"]): entry["nsamples"] for entry in entries}
        if not listed or any(type(count) is not int or count < 1 for count in listed.values()):
            raise ValueError("a shard has no `nsamples` of at least 1, or there is no shard")
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{shown(name)} is no index of shards: {type(error).__name__}: {error}.\n"
            'It is a JSON file: {"shardlist": [{"url": "a.tar", "nsamples": 1000}, …]}.'
        ) from error
    return {
        url if "://" in url or url.startswith("/") or not folder else f"{folder}/{url}": count
        for url, count in listed.items()
    }


def _file_name(name: str) -> str:
    return name.partition("?")[0].rpartition("/")[2]


def _handlers(decode: str | Decode | Sequence[str | Decode]) -> list[Decode]:
    from webdataset.autodecode import ImageHandler

    given = [decode] if isinstance(decode, str) or callable(decode) else list(decode)
    return [ImageHandler(each) if isinstance(each, str) else each for each in given]


def _check_installed() -> None:
    try:
        import webdataset  # noqa: F401
    except ImportError as error:
        raise JobError(
            f"Shards needs the package webdataset, which is not installed: {error}.\n"
            "Install it: pip install 'webdataset>=1,<2'"
        ) from error
