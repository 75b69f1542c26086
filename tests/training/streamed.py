"""Tasks on streams, which remember the samples they were given."""

import random
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import IterableDataset

from clustertrain import Task


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

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


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
