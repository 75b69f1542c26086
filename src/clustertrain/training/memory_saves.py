"""Decides after which steps the state is saved in the memory of the nodes, the same ones on all ranks.

The checkpoint itself is an ordinary one, on another shelf (worker/memory_shelf.py). Every rank calls `due`
after each step. When one may be due, the ranks exchange two numbers: whether one of them still writes a
checkpoint, and which share of a step a copy of the state takes.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from clustertrain.training.ranks.distributed import RankInfo, gather_objects, gather_over_ranks
from clustertrain.training.ranks.dtensors import map_state, with_versions
from clustertrain.training.ranks.host import Host
from clustertrain.training.step.running_loss import Meter
from clustertrain.training.values import State

_SHARE = 0.01  # of the time of the steps: the most that copies may take
_FIRST_STEPS = 10  # between two saves until a copy was measured
_COPIES = 5  # of which the median counts


class MemorySaves:
    """Decides on all ranks after which steps the state is saved in the memory of the nodes.

    Args:
        every: steps between two saves; 0 for none, None for so many that copies take 1 % of their time.
        note: gets a line of the log.
    """

    def __init__(
        self, every: int | None, run: Host, rank_info: RankInfo, meter: Meter, note: Callable[..., None]
    ) -> None:
        self._run, self._rank_info, self._meter, self._note = run, rank_info, meter, note
        self._is_measured, self._every = every is None, _FIRST_STEPS if every is None else every
        self._step = self._next = 0  # of the last save, and of the next one
        self._since_s, self._saves, self._copies_s = 0.0, 0, deque[float](maxlen=_COPIES)

    def begin(self, step: int, state: State) -> None:
        """Begin after the first step, when the state has its size.

        Nothing is saved if a node lacks the room.
        """
        lacking = gather_objects(self._run.memory_lacks(state), self._rank_info) if self._every else []
        if lacks := next(filter(None, lacking), ""):
            self._every = 0
            self._note(text=f"no checkpoints are kept in the memory of the nodes: {lacks}")
        self._restart(step)

    def _restart(self, step: int) -> None:
        self._step, self._next, self._since_s = step, step + self._every, self._steps_s()

    def _steps_s(self) -> float:
        """Read a clock that stands still while no steps are done."""
        return time.perf_counter() - self._meter.paused_s

    def due(self, step: int) -> bool:
        """Return whether the state after this step is saved now; the same on all ranks."""
        if not self._every or step < self._next:
            return False
        if self._rank_info.device.type == "cuda":
            torch.cuda.synchronize(self._rank_info.device)  # what a copy would wait for is of the steps
        step_s = (self._steps_s() - self._since_s) / max(1, step - self._step)
        share_of_step = median(self._copies_s) / max(step_s, 1e-6) if self._copies_s else 0.0
        mine = torch.tensor([self._run.is_writing(), share_of_step], dtype=torch.float64)
        is_writing, share = gather_over_ranks(mine, self._rank_info).amax(0).tolist()
        if self._is_measured and share:
            self._every = max(1, math.ceil(share / _SHARE))
        if is_writing:  # it would wait for that
            self._next = step + max(1, self._every // 4)
        return not is_writing

    @contextmanager
    def copying(self, step: int) -> Iterator[None]:
        """Measure the copy after this step."""
        began_s = time.perf_counter()
        yield
        self._saves += 1
        if self._saves > 1:  # the first one writes to new memory, which takes several times as long
            self._copies_s.append(time.perf_counter() - began_s)
        self._restart(step)


def as_rank_0_has_it(state: State, model: nn.Module, rank_info: RankInfo) -> dict[str, Any]:
    """Return the state with rank 0's buffers of the model and rank 0's state of the task.

    Each rank has its own of them. All ranks call it: rank 0 may be on any node after the next start.
    """
    if rank_info.world_size == 1:
        return state
    parts: list[Any] = [None]
    if rank_info.rank == 0:
        named = model.state_dict(keep_vars=True).items()
        own = [name for name, value in named if not isinstance(value, nn.Parameter)]
        of_model = {name: state["model"][name] for name in own}
        of_task = {key: value for key, value in state.items() if key == "task"}
        parts = [map_state({"model": of_model, **of_task}, lambda path, tensor: tensor.cpu())]
    dist.broadcast_object_list(parts, src=0)
    changed = {**state["model"], **parts[0]["model"]}
    return {**state, **parts[0], "model": with_versions(changed, state["model"])}
