"""The same training as a Task of clustertrain."""

import time

import lenet
import torch
import torch.distributed as dist
from torch import nn

from clustertrain import Task


class LeNet(Task):
    """Notes each step; the loss is the default one, cross entropy."""

    def __init__(self, notes: str, data: str, callback_s: float = 0.0) -> None:
        self._folder, self._kind, self._callback_s = notes, data, callback_s
        self._notes: lenet.Notes | None = None

    def model(self) -> nn.Module:
        return lenet.make_model()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return lenet.make_optimizer(model)

    def train_data(self, data: object) -> object:
        return lenet.make_data(self._kind)

    def on_step(self, step: int, metrics: object) -> None:
        self._notes = self._notes or lenet.Notes(self._folder, dist.get_rank())
        self._notes.step(step)
        time.sleep(self._callback_s)
