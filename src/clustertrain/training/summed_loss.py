"""Whether a task's loss is a sum over the batch: the gradient then grows with the batch.

The loss of a batch is compared with those of its halves: a mean, also a weighted one, lies between them. A
term that compares the samples with each other does not, but has no value, or a margin, for one sample: so
the losses of a few are compared with those of each as well.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from clustertrain.training.model.building import discarding
from clustertrain.training.ranks.dtensors import is_sharded
from clustertrain.training.ranks.rng import seed_all
from clustertrain.training.step.not_finite import Alone
from clustertrain.training.step.precision import Precision
from clustertrain.training.task import Task
from clustertrain.training.values import Batch

_SEEDS = range(5)  # a loss with noise, as of a diffusion model, may look like a sum with one of them
_FEW = (0, 1, 2), (1, 2, 3), (2, 3, 4), (0, 1, 4)  # from the first sample to the second, and to the third
_LEAST = 1e-4  # a smaller one, or a smaller share of the other half, may be one of rounding


def sum_warning(
    task: Task, model: nn.Module, batch: Batch, *, precision: Precision, device: torch.device
) -> str:
    """Return the warning that the loss is a sum over the batch, or "".

    It is "" if the loss is not a sum, or if that cannot be seen: the batch has one sample or is not of
    tensors, the model is divided, or the loss of a part needs the other ranks or raises.

    It needs no other rank, and changes neither weights nor buffers nor random numbers.
    """
    leaves, form = tree_flatten(batch)
    sizes = {len(leaf) if isinstance(leaf, torch.Tensor) and leaf.ndim else 0 for leaf in leaves}
    size = sizes.pop() // 2 * 2 if len(sizes) == 1 else 0
    if size < 2 or is_sharded(model):
        return ""
    if size < 4:  # as many as are compared
        leaves, size = [torch.cat([leaf[:2], leaf[:2]]) for leaf in leaves], 4

    def loss_of(first: int, last: int, seed: int) -> float:
        part = tree_unflatten([leaf[first:last].clone() for leaf in leaves], form)
        seed_all(seed, rank=0)
        with precision.autocast():
            return float(task.loss(model, part))  # type: ignore[arg-type]  # TypeError if it has a count

    def losses(split: tuple[int, int, int], seed: int) -> tuple[float, float, float]:
        first, middle, last = split
        ends = (first, last), (first, middle), (middle, last)
        whole, one, other = (loss_of(*each, seed) for each in ends)
        return whole, one, other

    halves = (0, size // 2, size)

    modes = [(module, module.training) for module in model.modules()]
    try:
        with discarding(model, device), torch.no_grad(), Alone():  # type: ignore[no-untyped-call]  # torch
            model.eval()  # without dropout; BatchNorm takes one sample
            is_sum = all(_adds(*losses(split, seed)) for seed in _SEEDS for split in (*_FEW, halves))
            whole, one, other = losses(halves, 0) if is_sum else (0.0, 0.0, 0.0)
    except Exception:  # noqa: BLE001  the user's code, with a part of a batch: the whole one is what counts
        return ""
    finally:
        for module, mode in modes:
            module.training = mode
    if not is_sum:
        return ""
    return (
        f"the loss of {type(task).__name__} is a sum over the batch: {whole:.4g} for {size} samples, "
        f"{one:.4g} and {other:.4g} for their halves. It and its gradients grow with the batch: return the "
        "mean, or (loss, count)"
    )


def _adds(whole: float, one: float, other: float) -> bool:
    """Return whether a loss is the sum of the losses of its parts.

    Any mean of them is further from it by the smaller one, or more.
    """
    small, large = sorted((abs(one), abs(other)))
    return one * other > 0 and small > _LEAST * max(1, large) and abs(whole - one - other) < 0.1 * small
