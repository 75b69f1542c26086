"""A task for FSDP without random numbers: the number of ranks changes only rounding."""

from faulty import Faulty
from torch import nn


class Divided(Faulty):
    def model(self):
        return nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3))
