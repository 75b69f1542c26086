"""Activation checkpointing: what the backward pass computes again, in place of keeping it in memory."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

_OPS = torch.ops.aten
# Their results are kept by `operations`: they take most of the time of a forward pass.
_EXPENSIVE = {
    _OPS.mm.default,
    _OPS.addmm.default,
    _OPS.bmm.default,
    _OPS.convolution.default,
    _OPS._scaled_dot_product_flash_attention.default,
    _OPS._scaled_dot_product_flash_attention_for_cpu.default,
    _OPS._scaled_dot_product_efficient_attention.default,
    _OPS._scaled_dot_product_cudnn_attention.default,
}


def recomputing(model: nn.Module, block: nn.Module, how: str) -> nn.Module:
    """Put a wrapper that computes again in the place of a block of the model; names of parameters stay.

    Args:
        how: "none", "blocks" or "operations".

    Returns:
        what is in its place now.
    """
    if how == "none":
        return block
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    context: dict[str, Any] = {} if how == "blocks" else {"context_fn": _contexts}
    wrapped: nn.Module = checkpoint_wrapper(block, **context)
    for parent in list(model.modules()):
        if parent is not wrapped:
            for name, child in parent.named_children():
                if child is block:
                    setattr(parent, name, wrapped)
    return wrapped


def _keep_expensive(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    if operation in _EXPENSIVE:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


_contexts = partial(create_selective_checkpoint_contexts, _keep_expensive)
