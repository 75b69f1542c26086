"""A task for one GPU: deterministic, with evaluation, and with faults on request."""

import os
import signal
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from clustertrain import Task


class OnGpu(Task):
    def __init__(self, fault: str = "", at_call: int = 0, marker: str = "") -> None:
        self.fault, self.at_call, self.marker = fault, at_call, Path(marker)
        self.calls = 0
        torch.use_deterministic_algorithms(True)

    def model(self):
        layers = nn.Linear(6, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 3)
        return nn.Sequential(*layers)

    def train_data(self, data):
        x = torch.randn(96, 6, generator=torch.Generator().manual_seed(5))
        return TensorDataset(x, (x.sum(1) > 0).long() + (x[:, 0] > 1).long())

    def eval_data(self, data):
        return self.train_data(data)

    def loss(self, model, batch):
        x, y = batch
        if model.training:
            self.calls += 1
            if self.fault and self.calls == self.at_call and not self.marker.exists():
                self.marker.touch()
                self.strike(x.device)
        return nn.functional.cross_entropy(model(x), y)

    def strike(self, device):
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        torch.empty(2**50, dtype=torch.uint8, device=device)

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
