"""What all programs of the comparison share: the model, the data, and the notes of their steps."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from training_settings import BATCH_SIZE, RANKS

CLASSES = 100
SAMPLES = 40 * RANKS * BATCH_SIZE  # 40 steps an epoch


class Notes:
    """A line for each step of a rank, in a file of its own: the time, the step from 1, the process, and the
    seconds of CPU and the page faults that it has used up to now."""

    def __init__(self, folder: str, rank: int) -> None:
        self._file: TextIO = (Path(folder) / f"rank-{rank}").open("a", buffering=1)

    def step(self, step: int) -> None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        cpu_s = used.ru_utime + used.ru_stime
        self._file.write(f"{time.time():.6f} {step} {os.getpid()} {cpu_s:.6f} {used.ru_minflt}\n")


class Samples(Dataset[tuple[torch.Tensor, int]]):
    """A data set as most are written: one sample for each index."""

    def __init__(self) -> None:
        self.images, classes = make_tensors()
        self.classes: list[int] = classes.tolist()

    def __len__(self) -> int:
        return len(self.classes)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.images[index], self.classes[index]


def make_tensors() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(SAMPLES, 3, 32, 32, generator=generator)
    return images, torch.randint(0, CLASSES, (SAMPLES,), generator=generator)


def make_data(kind: str) -> Dataset[Any]:
    return Samples() if kind == "samples" else TensorDataset(*make_tensors())


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 5 * 5, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, CLASSES),
    )


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-3)


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    images, classes = batch
    return nn.functional.cross_entropy(model(images), classes)


def batches(loader: DataLoader[Any], kind: str, first: int, steps: int) -> Iterator[tuple[int, Any]]:
    """(step, batch) from step `first` to the last, in as many epochs as that takes."""
    step, epoch = first, (first - 1) // len(loader)
    while step <= steps:
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        for batch in loader:
            while step <= steps:
                yield step, batch
                step += 1
                if kind != "batch":
                    break
        epoch += 1
