"""Tasks on streams and on shards, which remember the samples they were given; and small shards."""

from __future__ import annotations

import io
import json
import random
import tarfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import IterableDataset

from clustertrain import Shards, Task


def write_shard(path: Path, first: int, count: int) -> None:
    """Samples `first`, `first` + 1, …, each of two files: its id and 4 numbers."""
    with tarfile.open(path, "w") as tar:
        for i in range(first, first + count):
            for name, text in ((f"{i:05d}.id", str(i)), (f"{i:05d}.json", json.dumps([i % 7, 1, 0, -1]))):
                member = tarfile.TarInfo(name)
                member.size = len(text)
                tar.addfile(member, io.BytesIO(text.encode()))


def write_shards(folder: Path, counts: list[int]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    at = 0
    for number, count in enumerate(counts):
        write_shard(folder / f"part-{number:03d}.tar", at, count)
        at += count
    return folder


def pair(sample: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, int]:
    """A sample of a shard, with noise."""
    x = torch.tensor(sample["json"], dtype=torch.float32)
    return x + 0.1 * random.random() + 0.1 * torch.randn(4), x.sum(0, keepdim=True), sample["id"]


class Regression(Task):
    """Remembers the ids of its batches."""

    def __init__(self) -> None:
        self.ids: list[list[int]] = []

    def model(self) -> nn.Module:
        return nn.Linear(4, 1)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        x, y, ids = batch
        if torch.is_grad_enabled():  # a pass of a step, or one that settles the buckets
            self.ids.append(ids.tolist())
        return functional.mse_loss(model(x), y)

    def eval_step(self, model: nn.Module, batch: Any) -> Any:
        x, y, _ = batch
        return functional.mse_loss(model(x), y), None, None

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


class OnShards(Regression):
    def __init__(self, folder: Any, **options: Any) -> None:
        super().__init__()
        self.folder, self.options = folder, options

    def train_data(self, data: Any) -> Any:
        return Shards(self.folder, transform=pair, **{"shuffle": 5, **self.options})

    def eval_data(self, data: Any) -> Any:
        return self.train_data(data)


class Numbers(IterableDataset):
    """The samples 0 to n - 1, permuted in each epoch, with noise; `ended`: fewer of them on some ranks."""

    def __init__(self, n: int, length: int | None = None, ended: dict[int, int] | None = None) -> None:
        self.n, self.ended = n, ended or {}
        if length is not None:
            self.__class__ = NumbersOfLength
        self.length = length

    def __iter__(self):
        rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        order = torch.randperm(self.n).tolist()
        for i in order[: self.ended.get(rank)]:
            x = torch.tensor([i % 7, 1.0, 0.0, -1.0])
            yield x + 0.1 * random.random(), x.sum(0, keepdim=True), i


class NumbersOfLength(Numbers):
    def __len__(self) -> int:
        return self.length


class OnStream(Regression):
    def __init__(self, *args: Any, evaluated: int = 0, **options: Any) -> None:
        super().__init__()
        self.args, self.options, self.evaluated = args, options, evaluated

    def train_data(self, data: Any) -> Any:
        return Numbers(*self.args, **self.options)

    def eval_data(self, data: Any) -> Any:
        return Numbers(self.evaluated, self.evaluated) if self.evaluated else None
