"""A 3D U-Net that finds the boundaries between grains in a volume."""

from itertools import pairwise

import torch
from grains import volumes
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import MultiStepLR

from clustertrain import Task


class Grains(Task):
    """Each sample is (image, boundaries), both (1, size, size, size)."""

    def __init__(self, lr: float, volumes: int, eval_volumes: int, size: int, channels: list) -> None:
        poolings = len(channels) - 1
        if size % 2**poolings:
            raise ValueError(
                f"size is {size}, but {len(channels)} channels halve it {poolings} times: "
                f"{size} / {2**poolings} = {size / 2**poolings}. Use a multiple of {2**poolings}."
            )
        self.lr, self.volumes, self.eval_volumes = lr, volumes, eval_volumes
        self.size, self.channels = size, channels

    def model(self):
        return UNet3d(self.channels)

    def train_data(self, data):
        return volumes(self.volumes, self.size, seed=0)

    def eval_data(self, data):
        self.evaluated = volumes(self.eval_volumes, self.size, seed=1)
        return self.evaluated

    def loss(self, model, batch):
        images, boundaries = batch
        return bce_and_dice(model(images), boundaries)

    def eval_step(self, model, batch):
        images, boundaries = batch
        scores = model(images)
        return bce_and_dice(scores, boundaries), scores, boundaries

    def metrics(self):
        return {"dice": Dice(), "iou": IoU()}

    def optimizer(self, model):
        return torch.optim.Adam(model.parameters(), lr=self.lr)

    def scheduler(self, optimizer, total_steps):
        """A tenth of the learning rate after 60 %, a hundredth after 85 % of the steps."""
        return MultiStepLR(optimizer, [total_steps * 60 // 100, total_steps * 85 // 100], gamma=0.1)

    def images(self, model):
        """The middle slice of the first volume: the input, the truth, the prediction."""
        image, boundaries = self.evaluated[0]
        device = next(model.parameters()).device
        prediction = model(image[None].to(device))[0].sigmoid()
        middle = self.size // 2
        shown = {"input": image, "truth": boundaries, "prediction": prediction}
        return {name: each[:, middle] for name, each in shown.items()}


def bce_and_dice(scores, targets):
    """Binary cross entropy plus 1 - Dice of the probabilities, averaged over the samples of the batch.

    In fp32 also under autocast: a sum over a volume exceeds the largest number of fp16, 65504.
    """
    scores = scores.float()
    probabilities, axes = scores.sigmoid(), tuple(range(1, scores.dim()))
    both = (probabilities * targets).sum(axes)
    dice = (2 * both + 1) / (probabilities.sum(axes) + targets.sum(axes) + 1)
    return functional.binary_cross_entropy_with_logits(scores, targets) + (1 - dice).mean()


class Dice:
    """2 |A ∩ B| / (|A| + |B|) over all voxels of the evaluation.

    The loop adds `sums` over the ranks. They are whole numbers, so the value does not depend on the ranks.
    """

    def reset(self):
        self.sums = torch.zeros(3, dtype=torch.int64)  # |A ∩ B|, |A|, |B|

    def update(self, scores, targets):
        found, true = scores > 0, targets > 0
        self.sums = self.sums.to(scores.device)
        self.sums += torch.stack([(found & true).sum(), found.sum(), true.sum()])

    def compute(self):
        both, found, true = self.sums.tolist()
        return 2 * both / max(1, found + true)


class IoU(Dice):
    """|A ∩ B| / |A ∪ B|."""

    def compute(self):
        both, found, true = self.sums.tolist()
        return both / max(1, found + true - both)


class UNet3d(nn.Module):
    """(batch, 1, d, h, w) to scores of the same shape; each level after the first halves the edges."""

    def __init__(self, channels):
        super().__init__()
        self.down = nn.ModuleList(convolutions(before, after) for before, after in pairwise([1, *channels]))
        pairs = list(pairwise(channels))[::-1]
        self.up = nn.ModuleList(nn.ConvTranspose3d(deep, flat, 2, stride=2) for flat, deep in pairs)
        self.join = nn.ModuleList(convolutions(2 * flat, flat) for flat, _ in pairs)
        self.head = nn.Conv3d(channels[0], 1, kernel_size=1)

    def forward(self, x):
        skipped = []
        for level in self.down:
            x = level(functional.max_pool3d(x, 2) if skipped else x)
            skipped.append(x)
        for up, join, skip in zip(self.up, self.join, skipped[-2::-1], strict=True):
            x = join(torch.cat([skip, up(x)], dim=1))
        return self.head(x)


def convolutions(before, after):
    return nn.Sequential(
        nn.Conv3d(before, after, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm3d(after),
        nn.ReLU(),
        nn.Conv3d(after, after, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm3d(after),
        nn.ReLU(),
    )
