"""Which kernels a GPU uses."""

from __future__ import annotations

import torch


def use_fast_kernels(matmul: str, cudnn: str, device: torch.device) -> None:
    """Set how this process computes fp32 products on a GPU, and how cuDNN chooses its algorithms.

    It sets nothing on a CPU. Call it before the task is made, which may set something else.

    Args:
        matmul: "tf32" rounds the factors of matrix products and convolutions to 10 bits of mantissa, and sums
            in fp32, on GPUs from Ampere on; "highest" computes them in fp32.
        cudnn: "measured": for each new shape cuDNN measures its algorithms and uses the fastest one, so the
            choice may differ between starts. "deterministic": only algorithms whose results are the same each
            time. "default": cuDNN's own choice, without a measurement.
    """
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high" if matmul == "tf32" else "highest")
        torch.backends.cudnn.allow_tf32 = matmul == "tf32"
        torch.backends.cudnn.deterministic = cudnn == "deterministic"
        torch.backends.cudnn.benchmark = cudnn == "measured"


def kernels_in_use(device: torch.device) -> str:
    """Describe for the log what the process computes with; empty on a CPU.

    If the task has requested deterministic algorithms, cuDNN no longer measures them.
    """
    if device.type != "cuda":
        return ""
    products, convolutions = (
        "TF32 (10 bits of mantissa)" if is_tf32 else "fp32"
        for is_tf32 in (
            torch.get_float32_matmul_precision() != "highest",
            torch.backends.cudnn.allow_tf32,
        )
    )
    deterministic = torch.are_deterministic_algorithms_enabled() or torch.backends.cudnn.deterministic
    torch.backends.cudnn.benchmark &= not deterministic
    measured = "measured for each shape" if torch.backends.cudnn.benchmark else "cuDNN's own choice"
    return (
        f"fp32 numbers: matrix products in {products}, convolutions in {convolutions} (train.matmul); "
        f"cuDNN's algorithms: {'deterministic' if deterministic else measured} (train.cudnn)"
    )
