"""The held task with a weight in its checkpoints: a buffer that nothing computes with."""

import torch
from held import Held

BALLAST_BYTES = 8 << 20


class Heavy(Held):
    def model(self):
        model = super().model()
        model.register_buffer("ballast", torch.zeros(BALLAST_BYTES, dtype=torch.uint8))
        return model
