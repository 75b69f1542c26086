"""Tasks that lose something when they resume."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from clustertrain import Task


class Plain(Task):
    def model(self):
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 2))

    def train_data(self, data):
        x = torch.randn(96, 4, generator=torch.Generator().manual_seed(1))
        return TensorDataset(x, (x.sum(1) > 0).long())

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


class OwnSchedule(Plain):
    """It counts its steps itself, in no checkpoint."""

    def optimizer(self, model):
        self.groups, self.steps = super().optimizer(model), 0
        return self.groups

    def on_step(self, step, metrics):
        self.steps += 1
        self.groups.param_groups[0]["lr"] = 0.1 / (1 + self.steps)
