"""Why a loss is not finite: the first module whose output is not, and the remedies that a job lacks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from clustertrain.training.settings import TrainSettings
from clustertrain.training.step.precision import Precision

_GPU_BATCHES = 100  # that are looked at: the program waits for the GPU, which a whole run should not


class NotFinite:
    """Looks at the losses of a rank while the weights are those that gave them: after the optimizer step all
    of them may be NaN."""

    def __init__(self, model: nn.Module, settings: TrainSettings, precision: Precision) -> None:
        self._model, self._settings, self._precision = model, settings, precision
        self._left, self._where = _GPU_BATCHES, ""

    def look(self, loss: torch.Tensor, loss_of: Callable[[nn.Module], Any]) -> None:
        """`loss_of`: computes this loss again."""
        if self._left <= 0 or self._where:
            return
        self._left -= loss.device.type != "cpu"
        if not loss.detach().isfinite().all():
            self._where = self._first(loss_of)

    def _first(self, loss_of: Callable[[nn.Module], Any]) -> str:
        found: list[str] = []

        def look(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
            if not found and not _is_finite(output):
                what = "output" if _is_finite(inputs) else "input"
                found.append(
                    f"The {what} of {name} ({type(module).__name__}) is the first that is not finite.\n"
                )

        hooks = [
            module.register_forward_hook(partial(look, name or "the model"))
            for name, module in self._model.named_modules()
        ]
        try:
            with torch.no_grad(), self._precision.autocast(), Alone():  # type: ignore[no-untyped-call]  # torch
                loss_of(self._model)
            found.append("Every module's output was finite: look at the targets and the loss function.\n")
        except Exception:  # noqa: BLE001  the user's code, called a second time; the loss itself is reported
            found.append("")
        finally:
            for hook in hooks:
                hook.remove()
        return found[0]

    def hint(self) -> str:
        """The first module, if it is known, and the remedies."""
        return self._where + remedies(self._settings)


class Alone(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Refuses collectives: the other ranks do not call them, as with FSDP and with SyncBatchNorm."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "c10d" in func.namespace:
            raise RuntimeError(f"{func} needs the other ranks")
        return func(*args, **(kwargs or {}))


def remedies(settings: TrainSettings) -> str:
    """What helps against large gradients, without what the job has already."""
    missing = [] if settings.clip_norm is not None else ["set train.clip_norm"]
    missing += [] if settings.lr.warmup_steps else ["set train.lr.warmup_steps"]
    return ", ".join(["Lower the learning rate", *missing])


def _is_finite(values: Any) -> bool:
    tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    return all(bool(each.isfinite().all()) for each in tensors if each.is_floating_point())
