"""CIFAR-100 from its binary archive: 32×32 pixels, 100 classes, and a LeNet that classifies them."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from clustertrain import Task

RECORD_BYTES = 1 + 1 + 3 * 32 * 32  # coarse class, fine class; red, green and blue, each row by row
COARSE_CLASSES, CLASSES = 20, 100


class Cifar100(Task):
    """Uses the defaults of Task: cross entropy as loss, the accuracy over the samples of all workers."""

    def __init__(self, lr: float) -> None:
        self.lr = lr

    def model(self):
        return nn.Sequential(
            Scaled(),
            nn.Conv2d(3, 6, kernel_size=5),  # (batch, 3, 32, 32) -> (batch, 6, 28, 28)
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, kernel_size=5),  # (batch, 6, 14, 14) -> (batch, 16, 10, 10)
            nn.ReLU(),
            nn.MaxPool2d(2),  # -> (batch, 16, 5, 5)
            nn.Flatten(),
            nn.Linear(16 * 5 * 5, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, CLASSES),
        )

    def optimizer(self, model):
        return torch.optim.Adam(model.parameters(), lr=self.lr)

    def train_data(self, data):
        return TensorDataset(*read(data["cifar100"] / "cifar-100-binary" / "train.bin"))

    def eval_data(self, data):
        return TensorDataset(*read(data["cifar100"] / "cifar-100-binary" / "test.bin"))


class Scaled(nn.Module):
    """Bytes to float32 from -1 to 1. In the model, because a GPU then receives a quarter of the bytes."""

    def forward(self, images):
        return images.float() / 127.5 - 1


def read(path):
    """Images, uint8 (n, 3, 32, 32), and their fine classes, int64 (n,).

    Raises:
        FileNotFoundError: the archive is not the binary version of CIFAR-100.
        ValueError: the file was cut, or a class is out of range.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there: unpack cifar-100-binary.tar.gz, not another version.")
    data = np.fromfile(path, dtype=np.uint8)
    count, rest = divmod(len(data), RECORD_BYTES)
    if rest or not count:
        raise ValueError(
            f"{path} has {len(data)} bytes: {count} × {RECORD_BYTES} + {rest}, "
            f"not a whole number of records of {RECORD_BYTES} bytes. Fetch it again."
        )
    records = data.reshape(count, RECORD_BYTES)
    for column, name, classes in ((0, "coarse", COARSE_CLASSES), (1, "fine", CLASSES)):
        wrong = np.flatnonzero(records[:, column] >= classes)
        if len(wrong):
            raise ValueError(
                f"{path}: record {wrong[0]} has the {name} class {records[wrong[0], column]}; "
                f"the classes are 0 to {classes - 1}. Records with this mistake: {len(wrong)} of {count}."
            )
    images = records[:, 2:].reshape(count, 3, 32, 32)
    return torch.from_numpy(images), torch.from_numpy(records[:, 1].astype(np.int64))
