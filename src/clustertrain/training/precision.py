"""Number formats of the forward pass, and loss scaling. Weights, gradients and optimizer states stay fp32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from clustertrain.errors import JobError

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """fp32, bf16 or fp16 on one device.

    fp16 has no numbers below 6e-8, so small gradients would become 0: `scaler` scales the loss.

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
        self.scaler = LossScaler(device, enabled=name == "fp16")

    def autocast(self) -> AbstractContextManager[object]:
        if self._dtype is None:
            return nullcontext()
        return torch.autocast(self._device_type, dtype=self._dtype)


class LossScaler:
    """Scales the loss up before the backward pass, and the gradients down before the step.

    A step whose gradients overflow is skipped, and the scale halved; after 2000 steps in a row without an
    overflow it is doubled (torch.amp.GradScaler). DDP has averaged the gradients, so all ranks skip the same
    steps. If it is not `enabled`, it changes nothing.
    """

    def __init__(self, device: torch.device, *, enabled: bool) -> None:
        self._scaler = torch.amp.GradScaler(device.type, enabled=enabled)
        self._enabled = enabled
        self._skipped_steps = 0

    @property
    def skipped_steps(self) -> int | None:
        """How many steps were skipped since the start of the run; None if it is not enabled."""
        return self._skipped_steps if self._enabled else None

    def backward(self, loss: torch.Tensor) -> None:
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]  # torch's own lacks types

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Scale the gradients down now, because their norm is needed; `step` then does not."""
        self._scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Step the optimizer; False if the step was skipped."""
        if not self._enabled:
            optimizer.step()
            return True
        scale = self._scaler.get_scale()
        self._scaler.step(optimizer)
        self._scaler.update()
        stepped = self._scaler.get_scale() >= scale  # it halves the scale if it skips a step
        self._skipped_steps += not stepped
        return stepped

    def figures(self) -> dict[str, float]:
        """For the log; empty if it is not enabled."""
        if not self._enabled:
            return {}
        return {"loss_scale": self._scaler.get_scale(), "skipped_steps": self._skipped_steps}

    def state(self) -> dict[str, Any]:
        return {**self._scaler.state_dict(), "skipped_steps": self._skipped_steps} if self._enabled else {}

    def load(self, state: dict[str, Any]) -> None:
        """Load `state`; one of another precision is empty, and changes nothing."""
        if self._enabled and state:
            self._scaler.load_state_dict(state)
            self._skipped_steps = state.get("skipped_steps", 0)
