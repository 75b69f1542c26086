"""The floating-point operations of a training step, and which share of a GPU's peak they use (MFU)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from clustertrain.training.model.building import discarding
from clustertrain.training.nested_tensors import map_tensors
from clustertrain.training.step.counted import parts
from clustertrain.training.step.precision import Precision
from clustertrain.training.task import Task

_TERA = 1e12
# By a part of the name that the driver reports, the longer names first: (16-bit, TF32, fp32) in units of 1e12
# FLOP/s. They are the dense figures of NVIDIA's data sheets, half of those with sparsity.
_PEAKS: dict[str, tuple[float, float | None, float | None]] = {
    "A100": (312, 156, 19.5),
    "H100 NVL": (835, 417.5, 60),
    "H100 PCIe": (756, 378, 51),
    "H100": (989, 494.5, 67),
    "H200 NVL": (835, 417.5, 60),
    "H200": (989, 494.5, 67),
    "B200": (2250, None, None),
    "L40S": (362, 183, 91.6),
}


def peak_flops_per_s(gpu: str, precision: str, *, tf32: bool) -> float | None:
    """The peak of a GPU for matrices in the number format of the training, or None for an unknown GPU.

    Args:
        gpu: its name, "NVIDIA H100 80GB HBM3".
        precision: train.precision.
        tf32: whether fp32 matrices are multiplied in TF32.
    """
    words = f" {gpu} ".replace("-", " ")
    found = next((peaks for name, peaks in _PEAKS.items() if f" {name} " in words), None)
    if found is None or "MIG" in words:
        return None
    in_16_bits, in_tf32, in_fp32 = found
    peak = in_16_bits if precision != "fp32" else in_tf32 if tf32 else in_fp32
    return None if peak is None else peak * _TERA


def peak_of(device: torch.device, precision: str) -> float | None:
    """The peak of this rank's device, or None if it is unknown."""
    if device.type != "cuda":
        return None
    tf32 = torch.get_float32_matmul_precision() != "highest"
    return peak_flops_per_s(torch.cuda.get_device_name(device), precision, tf32=tf32)


def count_flops(
    task: Task, model: nn.Module, batch: Any, *, precision: Precision, device: torch.device
) -> int:
    """The floating-point operations of a forward and a backward pass, as torch counts them: those of matrix
    products, convolutions and attention. The pass changes neither weights nor buffers nor random numbers.
    """
    with discarding(model, device), FlopCounterMode(display=False) as counter:
        with precision.autocast():
            loss, _ = parts(task.loss(model, map_tensors(batch, torch.clone)))
        loss.backward()
    return int(counter.get_total_flops())
