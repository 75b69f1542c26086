"""A task with everything that makes an exact resume hard, and faults on request.

Dropout needs every rank's random numbers, BatchNorm has buffers, momentum and the scheduler have state of
their own, 54 samples leave a short last step, and a step in mid-epoch is where the faults happen.
"""

import os
import signal
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from clustertrain import Task


class Faulty(Task):
    def __init__(
        self,
        fault: str = "",
        rank: int | None = 1,
        at_call: int = 0,
        *,
        marker: str = "",
        step_s: float = 0.0,
        width: int = 16,
        says: str = "",
    ) -> None:
        if says:
            print(says)
        self.width = width
        self.fault, self.rank, self.at_call, self.step_s = fault, rank, at_call, step_s
        self.marker = Path(marker) if marker else None
        self.calls = 0

    def model(self):
        layers = nn.Linear(6, n := self.width), nn.BatchNorm1d(n), nn.ReLU(), nn.Dropout(0.3), nn.Linear(n, 3)
        return nn.Sequential(*layers)

    def train_data(self, data):
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(54, 6, generator=generator)
        return TensorDataset(x, (x.sum(1) > 0).long() + (x[:, 0] > 1).long())

    def eval_data(self, data):
        return self.train_data(data)

    def loss(self, model, batch):
        x, y = batch
        loss = nn.functional.cross_entropy(model(x), y)
        if model.training:
            self.calls += 1
            time.sleep(self.step_s)
            if self.calls >= self.at_call and self.fault and self.rank in (None, int(os.environ["RANK"])):
                loss = self.strike(loss)
        return loss

    def strike(self, loss):
        marker = self.marker
        if marker is not None:
            if self.rank is None:  # every rank, after the others have come this far
                marker = marker.with_name(f"{marker.name}-{os.environ['RANK']}")
            if marker.exists():
                return loss
            marker.touch()
        if self.rank is None:
            torch.distributed.barrier()
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "stop":
            signal.raise_signal(signal.SIGSTOP)  # this thread; os.kill stops it when the main thread has run
            return loss
        if self.fault == "raise":
            raise ValueError("the sensor is upside down")
        if self.fault == "broken_gpu":  # the text of CUDA
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
        return loss * float("nan")

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def scheduler(self, optimizer, total_steps):
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total_steps)


class CalledBack(Faulty):
    """Spends a part of each step in a callback."""

    def on_step(self, step, metrics):
        time.sleep(0.2)


class Forgetful(Faulty):
    """Its loss depends on a number that no checkpoint contains."""

    def loss(self, model, batch):
        return super().loss(model, batch) * (1 + 0.1 * self.calls)
