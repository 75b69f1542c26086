"""Parameters that the loss does not depend on: DDP waits for the gradient of every parameter in each step."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from clustertrain.errors import JobError
from clustertrain.training.settings import TrainSettings
from clustertrain.training.task import Task

_UNFINISHED = "Expected to have finished reduction in the prior iteration"
_INDICES = re.compile(r"Parameter indices which did not receive grad for rank \d+:((?: \d+)+)")
_SHOWN = 3
_ACCEPT = "\nTo continue from a checkpoint with this change, start again with --accept-changes."


class AwaitedGradients:
    """The gradients that DDP waits for: of all parameters, unless it looks for unused ones.

    It looks for them in each pass, or with `static_graph` once.

    DDP itself reports a missing one only in its next pass, by number. Until then this rank has taken a step
    with gradients that were not averaged.
    """

    def __init__(self, task: Task, model: nn.Module, settings: TrainSettings, world_size: int) -> None:
        looks = settings.find_unused_parameters or settings.ddp.static_graph
        waits = world_size > 1 and settings.strategy == "ddp" and not looks
        self._task, self._model = task, model
        self._parameters = [p for p in model.parameters() if p.requires_grad] if waits else []

    def check(self) -> None:
        """Check after a backward pass that exchanged gradients that each parameter has one.

        Raises:
            JobError: a parameter has none; names it.
        """
        if any(parameter.grad is None and parameter.requires_grad for parameter in self._parameters):
            raise _unused(self._task, _without_gradient(self._model), _ACCEPT)

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Name the parameters in DDP's error about the pass before, which a forward pass inside raises.

        It finds what `check` cannot: a parameter with a gradient only from an earlier pass of an accumulated
        step.

        Raises:
            JobError: in place of DDP's error.
        """
        try:
            yield
        except RuntimeError as error:
            if _UNFINISHED not in str(error):
                raise
            names = [name for name, p in self._model.named_parameters() if p.requires_grad]  # DDP's order
            found = _INDICES.search(str(error))
            numbers = map(int, found[1].split()) if found else ()
            unused = [names[n] for n in numbers if n < len(names)]
            raise _unused(self._task, unused or ["(DDP does not name them)"], _ACCEPT) from error


def _without_gradient(model: nn.Module) -> list[str]:
    return [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]


def _unused(task: Task, names: list[str], more_remedy: str = "") -> JobError:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return JobError(
        f"The loss of {type(task).__name__} does not depend on parameters of the model: "
        f"{', '.join(names[:_SHOWN])}{more}.\n"
        "With several workers DDP waits for the gradients of all parameters. Set "
        f"train.find_unused_parameters: true, or freeze or remove these parameters.{more_remedy}"
    )
