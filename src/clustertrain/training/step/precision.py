"""Number formats of the forward pass, and loss scaling. Weights, gradients and optimizer states stay fp32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from clustertrain.errors import JobError
from clustertrain.training.values import State

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

    Whether a step was skipped is known on the GPU. `was_made` is called one step later, so that it does not
    wait for the GPU. With a fused optimizer nothing else does; any other one waits in `step`, in torch.
    """

    def __init__(self, device: torch.device, *, enabled: bool) -> None:
        self._scaler = torch.amp.GradScaler(device.type, enabled=enabled)
        self.enabled = enabled
        self._skipped_steps = 0
        self._one = torch.ones((), device=device if enabled else None)
        on_gpu = enabled and device.type == "cuda"
        self._is_lower = torch.zeros((), dtype=torch.bool, pin_memory=on_gpu)  # the scale after the last step
        self._copied = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]  # torch's own
        self._is_pending = False

    @property
    def skipped_steps(self) -> int | None:
        """How many steps were skipped since the start of the run, or None if it is not enabled."""
        self.was_made()
        return self._skipped_steps if self.enabled else None

    def backward(self, loss: torch.Tensor) -> None:
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]  # torch's own lacks types

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Scale the gradients down now, because their norm is needed; `step` then does not."""
        self._scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Step the optimizer, or skip the step."""
        if not self.enabled:
            optimizer.step()
            return
        before = self._scaler.scale(self._one)
        self._scaler.step(optimizer)
        self._scaler.update()  # it halves the scale if the step was skipped
        self._is_lower.copy_(self._scaler.scale(self._one) < before, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        self._is_pending = True

    def was_made(self) -> bool:
        """Return whether the last step was made, and not skipped."""
        if self._is_pending:
            if self._copied is not None:
                self._copied.synchronize()
            self._skipped_steps += int(self._is_lower)
            self._is_pending = False
        return not self._is_lower

    def figures(self) -> dict[str, float]:
        """Describe the loss scaling for the log; empty if it is not enabled."""
        if not self.enabled:
            return {}
        return {"loss_scale": self._scaler.get_scale(), "skipped_steps": self.skipped_steps or 0}

    def state(self) -> State:
        return {**self._scaler.state_dict(), "skipped_steps": self.skipped_steps} if self.enabled else {}

    def load(self, state: State) -> None:
        """Load `state`; one of another precision is empty, and changes nothing."""
        if self.enabled and state:
            self._scaler.load_state_dict(state)
            self._skipped_steps = state["skipped_steps"]
