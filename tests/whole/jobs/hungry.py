"""Tasks that exceed a limit: memory, open files, space in /dev/shm."""

from pathlib import Path

import torch
from faulty import Faulty
from torch import nn
from torch.utils.data import Dataset

from clustertrain import Task

CHUNK_BYTES = 64 << 20


class Hungry(Faulty):
    """`fault` is "memory" or "files": from `at_call` on, as much of it as can be had."""

    def strike(self, loss):
        taken = []
        while True:
            if self.fault == "memory":
                taken.append(bytearray(b"x") * CHUNK_BYTES)  # every page is touched
            else:
                taken.append(Path("/dev/null").open())  # noqa: SIM115  that none is closed is the point


class Samples(Dataset):
    """Samples of 4 MB each, created when they are read."""

    def __len__(self):
        return 32

    def __getitem__(self, i):
        return torch.full((1_000_000,), float(i))


class Bulky(Task):
    """Batches of 16 MB, which loader processes hand over in /dev/shm."""

    def model(self):
        return nn.Linear(1, 1)

    def train_data(self, data):
        return Samples()

    def loss(self, model, batch):
        return model(batch[:, :1]).square().mean()

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.01)
