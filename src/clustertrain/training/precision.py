"""Number formats of the forward pass. Weights, gradients and optimizer states stay fp32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from clustertrain.errors import JobError

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """fp32, bf16 or fp16 on one device.

    fp16 has no numbers below 6e-8, so small gradients would become 0: `scaler` scales the loss up, and the
    gradients down before the step.

    Raises:
        JobError: fp16 without a GPU.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        if name == "fp16" and device.type != "cuda":
            raise JobError(
                f"train.precision is fp16, but this worker runs on {device.type}; fp16 needs a GPU.\n"
                "Set resources.gpus_per_worker, or use bf16 or fp32."
            )
        self._dtype = _DTYPES.get(name)
        self._device_type = device.type
        self.scaler = torch.amp.GradScaler(device.type, enabled=name == "fp16")

    def autocast(self) -> AbstractContextManager[object]:
        if self._dtype is None:
            return nullcontext()
        return torch.autocast(self._device_type, dtype=self._dtype)
