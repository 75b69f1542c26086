"""Copies of the whole state of a rank, kept so that they survive the death of this rank.

With FSDP no other rank has this rank's part of the weights and of the optimizer's state, and a state on a GPU
ends with its process. So the own part of the rank, in the file of last_step.py, is its whole state with a
checksum. To copy that takes a while: it is done every few steps, the same ones on all ranks, because only a
step that all of them have kept is of use.
"""

from __future__ import annotations

import io
import math
import time
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from torch import nn

from clustertrain.training.last_step import LastStep, State, memory_of, of_rank
from clustertrain.training.ranks.distributed import RankInfo, gather_objects
from clustertrain.training.ranks.dtensors import is_divided, local, map_state
from clustertrain.training.ranks.rng import pack_rng
from clustertrain.training.step.running_loss import Meter

_SHARE = 0.01  # of the time of the steps: the most that copies may take
_MEASURED_STEPS = 10  # before the ranks agree for the first time
_HOLE = torch.empty(0, device="meta")  # in the place of a tensor


def is_whole(own: dict[str, Any]) -> bool:
    """Whether an own part is the whole state of its rank."""
    return "values" in own


def whole_state(own: dict[str, Any], world_size: int) -> dict[str, Any] | None:
    """The state as a checkpoint of FSDP has it, from the own part of a rank, or None if it is damaged. A
    divided tensor is one of the meta device: `fill` reads it."""
    if _checksum(own) != int(own["checksum"]):
        return None
    values = io.BytesIO(memory_of(own["values"])[: int(own["values_bytes"])])
    tensors = {**own["buffers"], **own["divided"]}
    state = torch.load(values, weights_only=True)
    state = map_state(state, lambda path, _: tensors[path])
    return {**state, **of_rank(own, state["flushed_step"], world_size)}


def fill(own: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    """Copy this rank's parts of the divided tensors, by their paths in the state."""
    with torch.no_grad():
        for path, tensor in tensors.items():
            local(tensor).copy_(own["buffers"][path])


class CopiedStep(LastStep):
    """The last step that this rank has copied, and of how many steps it copies one."""

    is_whole = True

    def __init__(
        self,
        model: nn.Module,
        meter: Meter,
        rank_info: RankInfo,
        most_losses: int,
        state: Callable[[], State],
        *,
        every: int | None,
        note: Callable[[str], None],
        copying: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """
        Args:
            every: a state is copied after this many steps; None measures how many.
            note: gets a line of the log.
            copying: entered for a copy between two steps.
        """
        super().__init__(model, meter, rank_info, most_losses, state)
        self._log_line, self._copying = note, copying
        self._every, self._is_given, self._is_asked = every or 1, every is not None, False
        self._first_step = self._seen = self._every_in_log = 0
        self._is_measured, self._agrees_after = True, max(_MEASURED_STEPS, 2 * self._every)
        self._completed_s = time.perf_counter()
        self._copies_s, self._steps_s = list[float](), list[float]()

    def open(self, path: Path, room_bytes: float) -> None:
        self._is_asked, self._opened = True, (path, room_bytes)
        tensors, data, divided = self._split(0)

        def more() -> dict[str, Any]:
            count = torch.zeros((), dtype=torch.int64)
            values = torch.zeros(2 * len(data) + 4096, dtype=torch.uint8)
            return {"values": values, "values_bytes": count, "checksum": count.clone(), "divided": divided}

        self._create(path, room_bytes, tensors, more)

    def keep_own_part(self, mark: int) -> None:
        """Nothing: the state of the step does not exist before the optimizer step."""

    def completed(self, mark: int) -> None:
        """The state is that of `mark`. All ranks call it after the same steps."""
        if mark == self._seen:
            return
        self._seen = mark
        step, is_evaluated = divmod(mark, 2)
        if not is_evaluated:
            self._first_step = self._first_step or step
        is_copied = self._every and self._parts is not None and (step - self._first_step) % self._every == 0
        if is_copied and self._rank_info.device.type == "cuda":
            torch.cuda.synchronize(self._rank_info.device)  # what the copy waits for is of the step
        began_s = time.perf_counter()
        if self._is_measured and not is_evaluated and step > self._first_step:
            self._steps_s.append(began_s - self._completed_s)
        if is_copied:
            with nullcontext() if is_evaluated else self._copying():
                self._keep(mark)
            if self._is_measured:
                self._copies_s.append(time.perf_counter() - began_s)
        if self._is_measured and not is_evaluated and step - self._first_step == self._agrees_after:
            self._agree()
        self._completed_s = time.perf_counter()

    def _keep(self, mark: int) -> None:
        tensors, data, _ = self._split(mark)

        def write_values(part: dict[str, Any]) -> None:
            part["rng"].copy_(pack_rng(self._rank_info.device))  # a GPU's, too
            memory_of(part["values"])[: len(data)] = data
            part["values_bytes"].fill_(len(data))
            part["checksum"].fill_(_checksum(part))

        if not self._fits(tensors, len(data)):
            path, room_bytes = self._opened
            path.unlink(missing_ok=True)
            self._parts = None
            self.open(path, room_bytes)
        self._write(mark, [*tensors.values()], write_values)

    def _fits(self, tensors: dict[str, torch.Tensor], data_bytes: int) -> bool:
        """Whether the file is for a state like this one. An optimizer makes its own in the first step with a
        gradient, and the loss scaler of fp16 skips some."""
        part = self._mapped["parts"][0]
        kinds = [{n: (t.shape, t.dtype) for n, t in each.items()} for each in (tensors, part["buffers"])]
        return kinds[0] == kinds[1] and data_bytes <= part["values"].nbytes

    def _split(self, mark: int) -> tuple[dict[str, torch.Tensor], bytes, dict[str, torch.Tensor]]:
        """The tensors of this rank by their path in the state, the rest of the state as bytes, and those
        that are divided, whole, without values."""
        tensors, divided = dict[str, torch.Tensor](), dict[str, torch.Tensor]()

        def take(path: str, tensor: torch.Tensor) -> torch.Tensor:
            tensors[path] = local(tensor)
            if is_divided(tensor):
                divided[path] = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
            return _HOLE

        data = io.BytesIO()
        with torch.no_grad():
            torch.save(map_state({**self._state()[1], "mark": mark}, take), data)
        return tensors, data.getvalue(), divided

    def _agree(self) -> None:
        """On the steps of which one is copied: a number that is not given makes a copy of the slowest rank
        take 1 % of their time at most."""
        copy_s = median(self._copies_s) if self._parts is not None else math.inf
        of_steps = fmean if self._is_given else median  # a GPU is behind until a copy waits for it
        share_of_step = max(gather_objects(copy_s / of_steps(self._steps_s), self._rank_info))
        has_room = math.isfinite(share_of_step)
        self._is_measured = has_room and not self._is_given
        if self._is_measured:
            self._every = max(1, math.ceil(share_of_step / _SHARE))
        elif not has_room:
            self._every = 0
        if not has_room and (self._is_asked or self._is_given):
            lacks = "room for the state of its ranks" if self._is_asked else "folder for it in /dev/shm"
            self._log_line(f"the last step is not kept in memory: a node has no {lacks}")
        elif has_room and self._every != self._every_in_log:
            self._every_in_log = self._every
            self._log_line(
                f"the last step is kept in memory every {self._every} steps: a copy takes "
                f"{copy_s * 1e3:.1f} ms, {share_of_step / self._every:.1%} of their time"
            )
        self._agrees_after *= 2
        self._steps_s.clear()
        del self._copies_s[:-1]


def _checksum(own: dict[str, Any]) -> int:
    """CRC-32 of an own part."""
    found = 0
    parts = (own[name] for name in ("rng", "losses", "count", "values_bytes", "values"))
    for tensor in (*parts, *own["buffers"].values()):
        if tensor.nbytes:
            found = zlib.crc32(memory_of(tensor), found)
    return found
