"""Which kernels a GPU uses, and the memory layout that they read fastest."""

from __future__ import annotations

import torch
from torch import nn

_LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}


def use_fast_kernels(matmul: str, device: torch.device) -> str:
    """Set how this process computes fp32 products on a GPU, and whether cuDNN measures its algorithms.

    "tf32" rounds the factors of matrix products and convolutions to 10 bits of mantissa, and sums in fp32, on
    GPUs from Ampere on; "highest" computes them in fp32. cuDNN measures its algorithms for each new shape and
    uses the fastest one, unless deterministic algorithms are requested: the choice may differ between starts.

    Returns:
        what was set, for the log; empty on a CPU, where nothing changes.
    """
    if device.type != "cuda":
        return ""
    torch.set_float32_matmul_precision("high" if matmul == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = matmul == "tf32"
    deterministic = torch.are_deterministic_algorithms_enabled() or torch.backends.cudnn.deterministic
    torch.backends.cudnn.benchmark = not deterministic
    products = "TF32 (10 bits of mantissa)" if matmul == "tf32" else "fp32"
    choice = "deterministic" if deterministic else "measured for each shape"
    return (
        f"matrix products and convolutions of fp32 numbers: {products} (train.matmul: {matmul}); "
        f"cuDNN's algorithms: {choice}"
    )


def to_channels_last(model: nn.Module) -> None:
    """Store the weights of convolutions in 2 and 3 dimensions with the channels last, in place; their outputs
    then have this layout as well. Values and shapes stay the same."""
    for tensor in (*model.parameters(), *model.buffers()):
        if (layout := _LAYOUTS.get(tensor.dim())) is not None:
            tensor.data = tensor.data.contiguous(memory_format=layout)
