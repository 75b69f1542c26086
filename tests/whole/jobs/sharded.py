"""The task for FSDP on WebDataset shards, with noise that a resume must repeat."""

import torch
from divided import Divided

from clustertrain import Shards


def pair(sample):
    x = torch.tensor(sample["json"], dtype=torch.float32)
    return x + 0.1 * torch.randn(6), int(x.sum() > 0) + int(x[0] > 1)


class Sharded(Divided):
    def train_data(self, data):
        return Shards(data["points"], transform=pair, shuffle=4)
