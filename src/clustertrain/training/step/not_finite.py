"""Why a loss is not finite: the first module whose output is not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from clustertrain.training.step.precision import Precision
from clustertrain.training.task import Loss

REMEDY = "Lower the learning rate, set train.clip_norm or train.lr.warmup_steps"
_GPU_BATCHES = 100  # that are looked at: the program waits for the GPU, which a whole run should not


class NotFinite:
    """Looks at the losses of a rank while the weights are still the ones that gave them.

    After the optimizer step all of the weights may be NaN.
    """

    def __init__(self, model: nn.Module, precision: Precision) -> None:
        self._model, self._precision, self._left = model, precision, _GPU_BATCHES
        self.where = ""

    def look(self, loss: torch.Tensor, loss_of: Callable[[nn.Module], Loss]) -> None:
        """Find the first module whose output is not finite, if the loss is not.

        Args:
            loss_of: computes this loss again.
        """
        if self._left <= 0 or self.where:
            return
        self._left -= loss.device.type != "cpu"
        if not loss.detach().isfinite().all():
            self.where = self._first(loss_of)

    def _first(self, loss_of: Callable[[nn.Module], Loss]) -> str:
        found = ["Every module's output was finite: look at the targets and the loss function.\n"]

        def look(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
            if len(found) == 1 and not all(
                each.isfinite().all() for each in tree_leaves(output) if _is_float(each)
            ):
                found.append(
                    f"The output of {name} ({type(module).__name__}) is the first that is not finite.\n"
                )

        modules = self._model.named_modules()
        hooks = [each.register_forward_hook(partial(look, name or "the model")) for name, each in modules]
        try:
            with torch.no_grad(), self._precision.autocast(), Alone():  # type: ignore[no-untyped-call]  # torch
                loss_of(self._model)
        except Exception:  # noqa: BLE001  the user's code, called a second time; the loss itself is reported
            found[0] = ""
        finally:
            for hook in hooks:
                hook.remove()
        return found[-1]


class Alone(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Refuses collectives: the other ranks do not call them, as with FSDP and with SyncBatchNorm."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "c10d" in func.namespace:
            raise RuntimeError(f"{func} needs the other ranks")
        return func(*args, **(kwargs or {}))


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()
