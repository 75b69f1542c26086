"""float8: large matrix products in 8 bits, by torchao; weights, gradients and optimizer stay as they are."""

from __future__ import annotations

import torch
from torch import nn

from clustertrain.errors import ClusterError, JobError

_LEAST_FEATURES = 1024  # below, the conversions cost more than the product saves
_MULTIPLE = 16  # of cuBLAS
_LEAST_CAPABILITY = (8, 9)


def is_convertible(module: nn.Module, name: str) -> bool:
    """Whether a linear layer is large enough, and has sizes that the GPU can multiply in float8."""
    if type(module) is not nn.Linear:  # a subclass may have a forward() of its own
        return False
    sizes = module.in_features, module.out_features
    return min(sizes) >= _LEAST_FEATURES and all(size % _MULTIPLE == 0 for size in sizes)


def to_float8(model: nn.Module, device: torch.device) -> None:
    """Replace large linear layers of the model in place; names and parameters stay. On a CPU, in a rehearsal
    without the GPU, they are only counted.

    Raises:
        JobError: there is no such layer, or torchao is not installed.
        ClusterError: the GPU has no float8.
    """
    if not any(is_convertible(module, name) for name, module in model.named_modules() if name):
        raise JobError(
            f"train.float8 is true, but {type(model).__name__} has no nn.Linear inside it with at least "
            f"{_LEAST_FEATURES} inputs and outputs, both multiples of {_MULTIPLE}.\n"
            "Smaller products are not faster in float8: remove the key, or use wider layers."
        )
    if device.type != "cuda":
        return
    if (found := torch.cuda.get_device_capability(device)) < _LEAST_CAPABILITY:
        raise ClusterError(
            f"train.float8 needs a GPU with compute capability 8.9 or newer (Ada, Hopper, Blackwell), and "
            f"{torch.cuda.get_device_name(device)} has {found[0]}.{found[1]}.\n"
            "Use other GPUs, or remove the key: train.precision: bf16 alone."
        )
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ImportError as error:
        raise JobError(
            f"train.float8 needs torchao, which cannot be imported: {error}\n"
            "Install clustertrain with the extra float8 where the workers run, or remove the key."
        ) from error
    # cuBLAS needs a multiple of 16 in each direction; the short batch at the end of an epoch is padded.
    padded = Float8LinearConfig(pad_inner_dim=True)
    convert_to_float8_training(model, module_filter_fn=is_convertible, config=padded)
