"""Task: the parts of a training. Derive from it and write two methods; the other methods have defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import default_collate

from clustertrain.errors import JobError
from clustertrain.training.metrics import Accuracy, Metric, MetricFunction
from clustertrain.training.values import Batch, Dataset, Outputs, Sample

Loss = torch.Tensor | tuple[torch.Tensor, float | torch.Tensor]  # a mean, or a sum and its count


class Task:
    """A training task. By default a classifier: batches are (inputs, classes), the loss is cross entropy.

        class Digits(Task):
            def __init__(self, lr: float = 1e-3) -> None:
                self.lr = lr

            def model(self):
                return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

            def train_data(self, data):
                return TensorDataset(*torch.load(data["digits"] / "train.pt"))

    Every rank creates its own Task and calls the same methods. `__init__` takes the job's `args` by name.

    With `tokens_per_sample` the log has tokens per second.

    `on_step`, `on_epoch` and `on_eval` are callbacks: by default they do nothing. Every rank calls them, so a
    callback that writes to one place checks for `torch.distributed.get_rank() == 0`. They are called before
    the checkpoint of their step is saved. A run that resumes from a checkpoint repeats the later steps with
    their callbacks. What a callback changes in the task is part of a checkpoint only if `state_dict` has it.
    """

    tokens_per_sample: int | None = None

    def model(self) -> nn.Module:
        """Return the model, on the CPU; torch has the same seed on all ranks."""
        raise NotImplementedError(
            f"{type(self).__name__} has no model(); a Task needs one that returns an nn.Module."
        )

    def init_weights(self, module: nn.Module, name: str) -> None:
        """Set the module's own parameters, those of `module.parameters(recurse=False)`, in place.

        Only if a task overrides it: `model()` is then built without memory for parameters, and what it writes
        into them is lost. This method is called for each module that has some, those inside it first, on the
        rank's device and without gradients; `name` is its name in the model.
        See docs/guides/large-models.md, Memory.
        """

    def blocks(self, model: nn.Module) -> Iterable[nn.Module] | None:
        """Return the modules of the model whose parameters are gathered together, such as `model.layers`.

        This is for train.strategy: fsdp. With None they are found by their size. `train.fsdp.blocks` of the
        job file overrides them.
        """
        return None

    def train_data(self, data: Mapping[str, Path]) -> Dataset:
        """Return the training samples; `data` has the job's data paths by name.

        A data set with __len__ and __getitem__, or an IterableDataset: see docs/guides/data.md.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no train_data(); a Task needs one that returns a dataset."
        )

    def sample_weights(self, dataset: Dataset) -> torch.Tensor | None:
        """Return a weight for each sample of the training data, a tensor of shape (samples,), or None.

        An epoch then draws as many samples as there are, with replacement, each in proportion to its weight.
        With None it takes each sample once.

        `dataset` is what `train_data` returned, a map-style data set. All ranks share one sequence of draws.
        """
        return None

    def eval_data(self, data: Mapping[str, Path]) -> Dataset:
        """Return the samples to evaluate on, or None for no evaluation."""
        return None

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """Return the mean loss of a batch, a scalar tensor.

        Call `model` itself: with several ranks it is DDP's wrapper, which averages the gradients and has no
        other method of the model. What the loss needs of the model is what its `forward` returns.

        Or return (sum, count), always: the sum of the losses of tokens, pixels or weighted samples, and of
        how many it is, a number or a tensor. Gradients, the logged loss and the loss of an evaluation are
        then the sum of all sums / the sum of all counts, over all ranks and all passes of a step. A rank may
        count 0, all ranks together may not.

        Before the first step it is called more often: with several ranks twice, with a copy of the first
        batch (see sanity.settle_buckets), and with a few samples of it, without gradients and in evaluation
        mode (see summed_loss.py).
        """
        inputs, targets = batch
        return functional.cross_entropy(model(inputs), targets)

    def eval_step(self, model: nn.Module, batch: Batch) -> tuple[Loss, Outputs, Outputs]:
        """Return (mean loss, outputs, targets) of a batch, or ((sum, count), outputs, targets).

        The metrics take outputs and targets. Outputs are None if `loss` is overridden and this method is not;
        then no metric is updated. Gradients are off. Do not call collectives here: the ranks may have
        different numbers of batches.
        """
        if type(self).loss is not Task.loss:
            return self.loss(model, batch), None, None
        inputs, targets = batch
        outputs = model(inputs)
        return functional.cross_entropy(outputs, targets), outputs, targets

    def metrics(self) -> Mapping[str, Metric | MetricFunction]:
        """Return the metrics of an evaluation besides the loss: the accuracy, if `loss` is not overridden.

        Each is a metric of torchmetrics, an object with reset, update and compute, or a function of (outputs,
        targets): see docs/guides/metrics.md.
        """
        return {"accuracy": Accuracy()} if type(self).loss is Task.loss else {}

    def images(self, model: nn.Module) -> Mapping[str, torch.Tensor]:
        """Return images for the loggers by name, after each evaluation.

        Only rank 0 calls it, with FSDP every rank: no collectives here.

        Each has the shape (channels, height, width) with 1 or 3 channels, and is uint8, bool, or floats from
        0 to 1. The model is in evaluation mode, gradients are off.
        """
        return {}

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return AdamW with the learning rate `self.lr`, or 1e-3 if there is none; on a GPU the fused one."""
        fused = all(parameter.is_cuda for parameter in model.parameters())
        return torch.optim.AdamW(model.parameters(), lr=getattr(self, "lr", 1e-3), fused=fused or None)

    def scheduler(
        self, optimizer: torch.optim.Optimizer, total_steps: int
    ) -> LRScheduler | tuple[LRScheduler, str] | None:
        """Return a scheduler, stepped after each optimizer step of `total_steps`, or None.

        Return (scheduler, "epoch") for one to be stepped after each epoch.

        Rank 0 calls it once more, with a stand-in for the optimizer: its log has the rates of the whole run.
        On a resume with another length or global batch it is rebuilt and stepped to the same position.
        """
        return None

    def state_dict(self) -> Mapping[str, Any]:
        """Return what the task has beside its model and has to have again after a resume.

        An example is an averaged copy of the model. The values are tensors, numbers, strings, and dicts,
        lists and tuples of them.

        It is a part of each checkpoint: rank 0's, so it must be the same on all ranks. Every rank calls it.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the state of a checkpoint, with tensors on the CPU.

        It is called on every rank before the first step of a run that resumes. When a new task is tried
        before its first step, it takes the task's own state.
        """
        raise JobError(
            f"{type(self).__name__} has no load_state_dict() for what state_dict() puts into checkpoints.\n"
            "Write both or none. To go on without the state of a checkpoint, start over with --fresh."
        )

    def collate(self, samples: list[Sample]) -> Batch:
        """Make a batch from a list of samples.

        With loader_workers the task is pickled to the loader processes.
        """
        return default_collate(samples)

    def on_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Run on every rank after each optimizer step; `step` counts from 1.

        Args:
            metrics: "loss", this rank's mean loss over its samples of the step, or over what it has counted,
                and NaN if that is nothing; "lr"; with train.clip_norm
                "grad_norm". Loss and norm are scalar tensors on the rank's device: float() of a tensor on a
                GPU waits for the GPU.
        """

    def on_epoch(self, epoch: int) -> None:
        """Run on every rank after the last step of an epoch, before its evaluation.

        `epoch` counts the completed epochs, from 1.
        """

    def on_eval(self, step: int, metrics: Mapping[str, float]) -> None:
        """Run on every rank after each evaluation, with the values that are logged.

        They are the same on every rank.
        """


def collate_of(task: Task) -> Callable[[list[Sample]], Batch]:
    """Return the task's collate, or torch's own function if it is not overridden.

    loading.Fetch recognizes torch's function.
    """
    return default_collate if type(task).collate is Task.collate else task.collate
