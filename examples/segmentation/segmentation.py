"""A small DeepLab on Cityscapes: dilated backbone, atrous spatial pyramid pooling (ASPP), auxiliary head.

Source: Chen et al. 2017, arXiv:1706.05587.
"""

import torch
from cityscapes import CLASSES, IGNORED, Cityscapes
from torch import nn
from torch.nn import functional

from clustertrain import Task

AUXILIARY_WEIGHT = 0.4  # of its loss


class Segmentation(Task):
    def __init__(self, lr: float, crop: list[int], auxiliary_share: float = 0.5) -> None:
        self.lr, self.crop, self.auxiliary_share = lr, crop, auxiliary_share

    def model(self):
        return DeepLab(len(CLASSES), self.auxiliary_share)

    def train_data(self, data):
        return Cityscapes(data["cityscapes"], "train", crop=self.crop)

    def eval_data(self, data):
        return Cityscapes(data["cityscapes"], "val")  # whole images: all have the same size

    def loss(self, model, batch):
        images, classes = batch
        output, auxiliary = model(images)
        loss = pixel_loss(output, classes)
        return loss if auxiliary is None else loss + AUXILIARY_WEIGHT * pixel_loss(auxiliary, classes)

    def eval_step(self, model, batch):
        images, classes = batch
        output, _ = model(images)
        return pixel_loss(output, classes), output, classes

    def metrics(self):
        return {"miou": MeanIoU(len(CLASSES))}

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=self.lr, momentum=0.9, weight_decay=1e-4)

    def scheduler(self, optimizer, total_steps):
        return torch.optim.lr_scheduler.PolynomialLR(optimizer, total_steps, power=0.9)


def pixel_loss(outputs, classes):
    """The mean cross entropy of the pixels that have a class; 0 if a crop has none."""
    loss = functional.cross_entropy(outputs, classes, ignore_index=IGNORED, reduction="sum")
    return loss / (classes != IGNORED).sum().clamp(min=1)


class MeanIoU:
    """The mean over the classes of intersection / union, from a confusion matrix of the pixels of all ranks.

    A class that neither the labels nor the outputs contain does not count.
    """

    def __init__(self, classes):
        self.classes = classes
        self.reset()

    def reset(self):
        self.sums = torch.zeros(
            self.classes, self.classes, dtype=torch.int64
        )  # rows: labels; columns: outputs

    def update(self, outputs, targets):
        """`outputs` (batch, classes, height, width), `targets` (batch, height, width)."""
        found, valid = outputs.argmax(dim=1), targets != IGNORED
        pairs = targets[valid] * self.classes + found[valid]
        counts = torch.bincount(pairs, minlength=self.classes**2)
        self.sums = self.sums.to(counts.device) + counts.reshape(self.sums.shape)

    def compute(self):
        """A number from 0 to 1; the loop has added `sums` over the ranks."""
        both = self.sums.diagonal()
        union = self.sums.sum(0) + self.sums.sum(1) - both
        return (both[union > 0] / union[union > 0]).mean()


class DeepLab(nn.Module):
    """Outputs (batch, classes, height, width) of images uint8 (batch, 3, height, width), and those of the
    auxiliary head, or None where it is left out: in evaluation, and in a random share of the training."""

    def __init__(self, classes, auxiliary_share, width=16):
        super().__init__()
        self.auxiliary_share = auxiliary_share
        self.backbone = nn.Sequential(
            convolution(3, width, stride=2),
            Block(width, 2 * width, stride=2),
            Block(2 * width, 4 * width, dilation=2),
        )
        self.deep = Block(4 * width, 4 * width, dilation=4)
        self.head = nn.Sequential(
            ASPP(4 * width, 4 * width, rates=(3, 6, 9)), nn.Conv2d(4 * width, classes, kernel_size=1)
        )
        self.auxiliary = nn.Sequential(
            convolution(4 * width, 2 * width), nn.Conv2d(2 * width, classes, kernel_size=1)
        )

    def forward(self, images):
        features = self.backbone(images.float() / 127.5 - 1)
        output = resized(self.head(self.deep(features)), images)
        if not self.training or torch.rand(()) >= self.auxiliary_share:
            return output, None
        return output, resized(self.auxiliary(features), images)


class ASPP(nn.Module):
    """The same features seen by convolutions of several dilations, and by their mean over the image."""

    def __init__(self, inputs, outputs, rates):
        super().__init__()
        self.branches = nn.ModuleList(
            [
                convolution(inputs, outputs, kernel_size=1),
                *(convolution(inputs, outputs, dilation=rate) for rate in rates),
            ]
        )
        self.pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(inputs, outputs, 1), nn.ReLU())
        self.joined = convolution((len(rates) + 2) * outputs, outputs, kernel_size=1)

    def forward(self, features):
        pooled = self.pooled(features).expand(-1, -1, *features.shape[2:])
        return self.joined(torch.cat([*(branch(features) for branch in self.branches), pooled], dim=1))


class Block(nn.Module):
    """Two convolutions with a shortcut."""

    def __init__(self, inputs, outputs, stride=1, dilation=1):
        super().__init__()
        self.first = convolution(inputs, outputs, stride=stride, dilation=dilation)
        self.second = convolution(outputs, outputs, dilation=dilation)
        self.shortcut = nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride)

    def forward(self, features):
        return self.second(self.first(features)) + self.shortcut(features)


def convolution(inputs, outputs, kernel_size=3, stride=1, dilation=1):
    padding = dilation * (kernel_size // 2)
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel_size, stride, padding, dilation, bias=False),
        nn.GroupNorm(outputs // 2, outputs),  # each image by itself, so also with one image per worker
        nn.ReLU(),
    )


def resized(outputs, images):
    return functional.interpolate(outputs, size=images.shape[2:], mode="bilinear", align_corners=False)
