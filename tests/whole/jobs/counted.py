"""The faulty task, whose samples are numbered, and each rank notes which ones it trained on."""

import os
from pathlib import Path

import torch
from faulty import Faulty
from torch.utils.data import TensorDataset


class Counted(Faulty):
    """Notes a line per call of the loss in `<ids>/<pid>`: the samples' numbers."""

    def __init__(self, ids: str = "", **args) -> None:
        super().__init__(**args)
        self.ids = Path(ids)

    def train_data(self, data):
        x, y = super().train_data(data).tensors
        return TensorDataset(x, y, torch.arange(len(x)))

    def loss(self, model, batch):
        x, y, ids = batch
        if model.training:
            with (self.ids / str(os.getpid())).open("a") as file:
                file.write(" ".join(map(str, ids.tolist())) + "\n")
        return super().loss(model, (x, y))
