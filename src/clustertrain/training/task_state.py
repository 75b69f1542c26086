"""What a task has beside its model: its own state in each checkpoint, or a warning about what is in none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import nn

from clustertrain.errors import JobError
from clustertrain.training.ranks.consistency import checksums
from clustertrain.training.ranks.dtensors import is_divided, map_state
from clustertrain.training.saving import check_readable
from clustertrain.training.task import Task
from clustertrain.training.task_errors import refusing

_COMPARED = 1 << 16  # elements of a tensor, at equal distances: an average and a BatchNorm change all


class TaskState:
    """The task's `state_dict`, and the modules that a task without one holds outside its model."""

    def __init__(self, task: Task, model: nn.Module) -> None:
        self._task, self._model = task, model
        self.is_saved = type(task).state_dict is not Task.state_dict
        self._first: dict[str, list[Any]] = {}  # of each module: checksums of its tensors, at first
        self._has_warned = self.is_saved

    def entry(self) -> dict[str, Any]:
        """Return what a checkpoint has of the task's state: nothing, if it has none.

        Raises:
            JobError: a tensor is divided among the ranks, and rank 0 has only its part.
        """

        def check(path: str, tensor: torch.Tensor) -> torch.Tensor:
            if is_divided(tensor):
                raise JobError(
                    f"{type(self._task).__name__}.state_dict() has {path}, a DTensor: rank 0, whose state is "
                    "saved, has only a part of it.\nReturn the whole: tensor.full_tensor(), on all ranks."
                )
            return tensor

        return {"task": map_state(self._task.state_dict(), check)} if self.is_saved else {}

    def rehearse(self) -> None:
        """Take the state and give it back, as a save and a resume do.

        Raises:
            JobError: one of them fails, or no resume could read it.
        """
        remedy = "Both are called before the first step, too."
        with refusing(self._task, "state_dict", "load_state_dict", remedy=remedy):
            state = self.entry()
            check_readable(state)
            if state:
                self._task.load_state_dict(state["task"])

    def load(self, state: Mapping[str, Any]) -> str:
        """Give the task its state in a checkpoint.

        Returns:
            a warning, if the checkpoint has none.

        Raises:
            JobError: the task does not take it.
        """
        name = type(self._task).__name__
        if "task" not in state:
            return f"the checkpoint has no state of {name}, which begins anew" if self.is_saved else ""
        remedy = "Undo the change, or start over with --fresh, which keeps this run."
        with refusing(self._task, "load_state_dict", remedy=remedy):
            # Cloned: they are mapped from a file that is removed later.
            self._task.load_state_dict(map_state(state["task"], lambda path, tensor: tensor.clone()))
        return ""

    def remember(self) -> None:
        """Note the modules that the task has now and had not before."""
        if not self._has_warned:
            self._first = self._outside() | self._first

    def lost(self) -> str:
        """Return a warning at a save, once, if modules have changed that are in no checkpoint."""
        if self._has_warned:
            return ""
        found, name = self._outside(), type(self._task).__name__
        changed = [each for each, sums in found.items() if self._first.get(each, sums) != sums]
        self._first, self._has_warned = found | self._first, bool(changed)
        if not changed:
            return ""
        names = ", ".join(f"{name}.{each}" for each in changed)
        return (
            f"{names}: changed since the start, and in no checkpoint: a resume begins with a new one. "
            f"Write {name}.state_dict() and load_state_dict(state)"
        )

    def _outside(self) -> dict[str, list[Any]]:
        """Compute checksums of the tensors that each module of the task does not share with its model."""
        of_model = {*map(id, _tensors(self._model))}
        return {
            name: [checksums(_sample(each)).tolist() for each in _tensors(module) if id(each) not in of_model]
            for name, module in self._modules()
        }

    def _modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield the modules that are attributes of the task, or in a list, tuple or dict that is one."""
        for name, value in vars(self._task).items():
            inner: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, dict) else ()
            if isinstance(value, list | tuple):
                inner = enumerate(value)
            for path, each in [(name, value), *((f"{name}[{key!r}]", each) for key, each in inner)]:
                if isinstance(each, nn.Module):
                    yield path, each


def _tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    """Yield a module's parameters and buffers, except kinds that have no plain elements."""
    for tensor in chain(module.parameters(), module.buffers()):
        is_plain = type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout is torch.strided
        if is_plain and not tensor.is_meta and not tensor.is_quantized:
            yield tensor


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1)[:: 1 + tensor.numel() // _COMPARED]
