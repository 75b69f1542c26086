"""Metrics as a user writes them, and a task whose outputs are its inputs, without arithmetic in between."""

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import TensorDataset

from clustertrain import Task
from clustertrain.training.metrics import Accuracy

SAMPLES = 11


def order(outputs, targets):
    """A mapping; the checksum of the ids depends on their order and their number."""
    ids = targets["ids"]
    return {"checksum": (ids * torch.arange(1, len(ids) + 1)).sum(), "samples": len(ids)}


def sums_of_all(outputs, targets):
    """Exact only if no rank's state is added to it again."""
    from torchmetrics import SumMetric

    metric = SumMetric()
    metric.update(outputs.scores.double())
    return metric.compute()


class MeanOutput:
    """The last digit depends on the order of the samples."""

    def reset(self):
        self.values = []

    def update(self, outputs, targets):
        assert outputs.scores.device.type == "cpu" and outputs.parts[0].dtype == torch.bool
        self.values.append(outputs.scores.double().cumsum(0)[-1].exp().mean() + outputs.parts[0].sum())

    def compute(self):
        (value,) = self.values
        return value


class OfThisTask(Accuracy):
    """A metric with `sums`."""

    def update(self, outputs, targets):
        super().update(outputs.scores.float(), targets["classes"])


class Outputs(NamedTuple):
    scores: torch.Tensor
    parts: tuple[torch.Tensor, Any]


class Own(Task):
    """Nested outputs and targets of several dtypes, and metrics of each kind."""

    samples = SAMPLES

    def model(self):
        return nn.Sequential(nn.Identity(), nn.BatchNorm1d(6))

    def train_data(self, data):
        return TensorDataset(*(tensor.repeat(4, *[1] * (tensor.dim() - 1)) for tensor in whole(self.samples)))

    def eval_data(self, data):
        return TensorDataset(*whole(self.samples))

    def loss(self, model, batch):
        return model(batch[0]).square().mean()

    def eval_step(self, model, batch):
        inputs, classes, ids = batch
        outputs = Outputs(inputs[:, :3].bfloat16(), (inputs > 0, None))
        return inputs.double().mean(), outputs, {"classes": classes, "ids": ids}

    def metrics(self):
        return {
            "order": order,
            "sums": sums_of_all,
            "accuracy": OfThisTask(),
            "mean": MeanOutput(),
        }


class OfTwo(Own):
    """Fewer samples than three ranks."""

    samples = 2


def whole(samples):
    """(inputs (samples, 6), classes (samples,), ids (samples,))."""
    generator = torch.Generator().manual_seed(4)
    return (
        torch.randn(samples, 6, generator=generator),
        torch.randint(0, 3, (samples,), generator=generator),
        torch.arange(samples),
    )
