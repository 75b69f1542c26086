"""A training described by its parts. Derive from Task and write two methods; override the others at need."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import default_collate

from clustertrain.training.metrics import Accuracy, Metric


class Task:
    """What to train. As it stands, a classifier: batches are (inputs, classes), the loss is cross entropy.

        class Digits(Task):
            def __init__(self, lr: float = 1e-3) -> None:
                self.lr = lr

            def model(self):
                return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

            def train_data(self, data):
                return TensorDataset(*torch.load(data["digits"] / "train.pt"))

    Every rank makes its own Task and calls the same methods. `__init__` takes the job's `args` by name.
    """

    def model(self) -> nn.Module:
        """The model, on the CPU; torch is seeded, alike on all ranks."""
        raise NotImplementedError(
            f"{type(self).__name__} has no model(); a Task needs one that returns an nn.Module."
        )

    def train_data(self, data: Mapping[str, Path]) -> Any:
        """The training samples, with __len__ and __getitem__; `data` has the job's data paths by name."""
        raise NotImplementedError(
            f"{type(self).__name__} has no train_data(); a Task needs one that returns a dataset."
        )

    def eval_data(self, data: Mapping[str, Path]) -> Any:
        """The samples to evaluate on, or None for no evaluation."""
        return None

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """The mean loss of a batch, a tensor of one number. Call `model` itself, so that DDP takes part.

        With several ranks it is called twice more, with a copy of the first batch, before the first step:
        see building.settle_buckets.
        """
        inputs, targets = batch
        return functional.cross_entropy(model(inputs), targets)

    def eval_step(self, model: nn.Module, batch: Any) -> tuple[torch.Tensor, Any, Any]:
        """(mean loss, outputs, targets) of a batch; the metrics are given outputs and targets.

        Outputs of None go to no metric: that is so when `loss` is overridden and this is not. No gradients,
        and no collectives here: the ranks may have different numbers of batches.
        """
        if type(self).loss is not Task.loss:
            return self.loss(model, batch), None, None
        inputs, targets = batch
        outputs = model(inputs)
        return functional.cross_entropy(outputs, targets), outputs, targets

    def metrics(self) -> Mapping[str, Metric]:
        """What an evaluation measures beside the loss: accuracy, or nothing when `loss` is overridden."""
        return {"accuracy": Accuracy()} if type(self).loss is Task.loss else {}

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """AdamW with the learning rate `self.lr`, or 1e-3 where there is none."""
        return torch.optim.AdamW(model.parameters(), lr=getattr(self, "lr", 1e-3))

    def scheduler(
        self, optimizer: torch.optim.Optimizer, total_steps: int
    ) -> torch.optim.lr_scheduler.LRScheduler | None:
        """A scheduler, stepped after each optimizer step of `total_steps`, or None.

        Resumed with another length or global batch, it is made anew and stepped to where it was.
        """
        return None

    def collate(self, samples: list[Any]) -> Any:
        """A batch from a list of samples. With loader_workers the task travels to the loader processes."""
        return default_collate(samples)
