"""Initial weights by `Task.init_weights`: the model is built without memory for its parameters.

With FSDP a rank then never has the whole model: a block is allocated on the device, initialized and divided
before the next one. The task sets parameters that are whole. Of a divided one, random numbers would depend on
the number of ranks, and `weight[0].fill_(0)` would change a copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy
from torch.utils.weak import WeakTensorKeyDictionary

from clustertrain.errors import JobError
from clustertrain.training.ranks.rng import derive_seed, restoring_rng, seed_all
from clustertrain.training.task import Task


@contextmanager
def without_parameters() -> Iterator[None]:
    """Move each parameter that a module takes inside to the meta device, so writing to it does nothing.

    Buffers keep their values.
    """
    on_meta = WeakTensorKeyDictionary()  # a parameter may be given to several modules

    def move(module: nn.Module, name: str, parameter: nn.Parameter) -> nn.Parameter:
        if parameter.is_meta or is_lazy(parameter):
            return parameter
        if parameter not in on_meta:
            on_meta[parameter] = nn.Parameter(parameter.to("meta"), parameter.requires_grad)
        moved: nn.Parameter = on_meta[parameter]
        return moved

    hook = register_module_parameter_registration_hook(move)  # type: ignore[arg-type]  # it may return one
    try:
        yield
    finally:
        hook.remove()


class Initialization:
    """Allocates and initializes the parameters of a model that are on the meta device, part by part.

    Other parameters stay as they are.

    Each module has a seed of its own, from `seed` and its place in the model. So the weights depend neither
    on the order of the parts nor on the number of ranks.
    """

    def __init__(self, task: Task, model: nn.Module, seed: int, device: torch.device) -> None:
        self._task, self._seed, self._device = task, seed, device
        self._places = {id(module): (n, name) for n, (name, module) in enumerate(model.named_modules())}

    def fill(self, part: nn.Module) -> None:
        """Give values to the parameters in `part`, those of inner modules first.

        Raises:
            JobError: the task does not set a parameter.
        """
        allocated: dict[nn.Parameter, nn.Parameter] = {}  # only until `part` is divided
        with restoring_rng(self._device):
            part.apply(lambda module: self._fill_own(module, allocated))

    def _fill_own(self, module: nn.Module, allocated: dict[nn.Parameter, nn.Parameter]) -> None:
        on_meta = [
            (key, each) for key, each in module._parameters.items() if each is not None and each.is_meta
        ]
        if not on_meta:
            return
        for key, parameter in on_meta:
            if parameter not in allocated:
                allocated[parameter] = self._allocated(parameter)
            setattr(module, key, allocated[parameter])
        place, name = self._places[id(module)]
        seed_all(derive_seed(self._seed, place), rank=0)
        with torch.no_grad():
            self._task.init_weights(module, name)
        for key, parameter in module.named_parameters(recurse=False):
            if parameter.isnan().any():
                raise JobError(
                    f"{type(self._task).__name__}.init_weights() leaves {f'{name}.{key}'.lstrip('.')} of "
                    f"{type(module).__name__} without values: what model() writes into parameters is lost.\n"
                    "Set it for this module, or remove init_weights: then model() sets all of them."
                )

    def _allocated(self, parameter: nn.Parameter) -> nn.Parameter:
        """Allocate a parameter with NaN in each element, which shows what was not set."""
        value = torch.nan if parameter.is_floating_point() or parameter.is_complex() else 0
        made = nn.Parameter(
            torch.full_like(parameter, value, device=self._device, requires_grad=False),
            parameter.requires_grad,
        )
        made.__dict__.update(parameter.__dict__)  # what an optimizer may look for
        return made
