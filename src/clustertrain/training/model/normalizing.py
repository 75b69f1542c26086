"""BatchNorm layers converted to another normalization, with the weights that can be kept.

The layers normalize by mean and variance over these values of an input (N, C, H, W); without or with more
dimensions than H and W, over those that there are:

as_is, sync   N·H·W of one channel: of this rank's batch, or of the batches of all ranks
instance      H·W of one channel and sample
group         (C/G)·H·W of one group of channels and sample
layer         C·H·W of one sample
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from clustertrain.errors import JobError

Kind = Literal["as_is", "sync", "group", "instance", "layer"]
MOST_GROUPS = 32  # Wu and He 2018, arXiv:1803.08494
_LEAST_VALUES = 3


def convert(model: nn.Module, kind: Kind, device: torch.device) -> nn.Module:
    """`model` with each BatchNorm layer replaced in place; if the model itself is one, another module.

    Weight and bias stay the same parameters. The running mean and variance are kept by `sync`; the other
    kinds have none.

    Raises:
        JobError: there is no BatchNorm layer, one has no shape yet, or `sync` is set for a CPU.
    """
    if kind == "as_is":
        return model
    if kind == "sync" and device.type != "cuda":
        raise JobError(
            f"train.normalization is sync, but this worker runs on {device.type}; torch supports it only on "
            "GPUs.\nSet resources.gpus_per_worker, or use group or layer on CPU."
        )
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, _BatchNorm)}
    if not layers:
        raise JobError(
            f"train.normalization is {kind}, but {type(model).__name__} has no BatchNorm layer that it could "
            "convert.\nRemove the key, or use layers of torch.nn.BatchNorm1d, 2d or 3d."
        )
    for name, layer in layers.items():
        if not layer.num_features:
            raise JobError(
                f"train.normalization is {kind}, but the channels of {type(layer).__name__} {name!r} are not "
                "known yet.\nCall the model once in model(), or use BatchNorm with a number of channels."
            )
    converted: dict[nn.Module, nn.Module] = {
        layer: _synchronized(layer)
        if kind == "sync"
        else PerSampleNorm(layer, name, groups_of(kind, layer.num_features))
        for name, layer in layers.items()
    }
    for parent in list(model.modules()):
        for name, child in parent._modules.items():  # named_children would omit a layer that is used twice
            if child in converted:
                parent._modules[name] = converted[child]
    return converted.get(model, model)


def _synchronized(layer: _BatchNorm) -> nn.Module:
    if isinstance(layer, nn.SyncBatchNorm):
        return layer  # it may have a process group of its own
    return nn.SyncBatchNorm.convert_sync_batchnorm(layer)  # type: ignore[no-untyped-call,no-any-return]


def groups_of(kind: Kind, channels: int) -> int:
    """The number of groups: for `group` the largest divisor of `channels`, up to MOST_GROUPS, that gives
    each group two channels or more."""
    if kind == "instance":
        return channels
    if kind == "layer":
        return 1
    return max(n for n in range(1, MOST_GROUPS + 1) if channels % n == 0 and (channels // n > 1 or n == 1))


class PerSampleNorm(nn.GroupNorm):
    """Normalizes each sample by itself: equally in training and evaluation, and for any number of ranks.

    Instance normalization is that of groups of one channel, layer normalization that of one group. All of
    them have a weight and a bias per channel, as BatchNorm has.
    """

    def __init__(self, layer: _BatchNorm, name: str, groups: int) -> None:
        super().__init__(groups, layer.num_features, layer.eps, affine=False)
        self.affine = layer.affine
        self.weight, self.bias = layer.weight, layer.bias
        self.train(layer.training)
        self._name = name

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """
        Raises:
            JobError: a group has so few values that the result would not depend on them.
        """
        values = input[0].numel() // self.num_groups if len(input) else _LEAST_VALUES
        if values < _LEAST_VALUES:
            always = "0" if values == 1 else "+1 and -1"
            remedy = "Use as_is." if self.num_groups == 1 else "Use layer, which has one group, or as_is."
            raise JobError(
                f"train.normalization: the layer {self._name!r} gets {tuple(input.shape)}: "
                f"{input[0].numel()} values of a sample / {self.num_groups} groups = {values}.\n"
                f"Such groups normalize to {always}, whatever the values are. {remedy}"
            )
        return super().forward(input)
