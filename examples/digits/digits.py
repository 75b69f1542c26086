"""Handwritten digits: 1,797 images of 8×8 pixels, and a LeNet-style network that classifies them."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from clustertrain import Task


class Digits(Task):
    """Uses the defaults of Task: cross entropy as loss, accuracy as metric, AdamW as optimizer."""

    def __init__(self, lr: float) -> None:
        self.lr = lr

    def model(self):
        return nn.Sequential(
            nn.Conv2d(1, 32, kernel_size=3, padding=1),  # (batch, 1, 8, 8) -> (batch, 32, 8, 8)
            nn.ReLU(),
            nn.Conv2d(32, 64, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),  # -> (batch, 64, 4, 4)
            nn.Flatten(),
            nn.Linear(64 * 4 * 4, 128),
            nn.ReLU(),
            nn.Dropout(0.25),
            nn.Linear(128, 10),
        )

    def scheduler(self, optimizer, total_steps):
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total_steps)

    def train_data(self, data):
        images, labels, held_out = read(data["digits"])
        return TensorDataset(images[~held_out], labels[~held_out])

    def eval_data(self, data):
        images, labels, held_out = read(data["digits"])
        return TensorDataset(images[held_out], labels[held_out])


def read(folder):
    """Images, float32 (1797, 1, 8, 8) from 0 to 1; labels, int64 (1797,); held out, bool (1797,)."""
    rows = torch.from_numpy(np.loadtxt(folder / "digits.csv", delimiter=",", dtype=np.int64))
    images = rows[:, :64].float().div(16).reshape(-1, 1, 8, 8)
    held_out = torch.arange(len(rows)) % 5 == 0  # every fifth image, the same ones in every run
    return images, rows[:, 64], held_out
