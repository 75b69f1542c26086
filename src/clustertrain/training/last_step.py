"""The last step that a rank has completed, kept so that it survives the death of another rank.

Until the next optimizer step a rank has all that a checkpoint of its last step contains, except what the
forward pass of the next step has changed: its buffers, its random states and its losses. This own part of a
rank is copied after each step into a file in memory, which survives a SIGKILL of the rank. With the rest,
which is the same on all ranks and which any rank that is alive can write, it is a checkpoint of that step.

A file has the own parts of the last two steps, because ranks may be one step apart when one of them dies.
torch writes it once, with room for all; then its tensors are mapped, and writing to them changes the file.

With FSDP, on a GPU, and where the job asks for it, the own part is the whole state of the rank
(copied_step.py).
"""

from __future__ import annotations

import ctypes
import mmap
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.serialization import set_default_mmap_options
from torch.utils._pytree import tree_leaves

from clustertrain.training.model.recomputing import WRAPPER
from clustertrain.training.ranks.distributed import RankInfo
from clustertrain.training.ranks.dtensors import with_versions
from clustertrain.training.ranks.host import SaveProgress
from clustertrain.training.ranks.rng import cpu_states, pack_rng
from clustertrain.training.step.running_loss import Meter

_MOST_BYTES = 4 << 20  # of an own part: copying more would slow the steps down

_COLUMNS = 4  # of a loss: its step, the loss, its samples, their weight

State = tuple[SaveProgress, dict[str, Any]]


def _mapped(file: Path) -> dict[str, Any]:
    """`marks` of two own parts, 0 while one is written, and `parts`: random states, buffers, and the losses
    since they were last summed over all ranks, each with its step and its samples. Of FSDP also what
    copied_step.py adds."""
    found: dict[str, Any] = torch.load(file, weights_only=True, mmap=True)
    return found


def parts_in(file: Path) -> dict[int, dict[str, Any]]:
    """The complete own parts in a file, by their marks."""
    found = _mapped(file)
    return {mark: part for mark, part in zip(found["marks"].tolist(), found["parts"], strict=True) if mark}


def with_own_part(state: dict[str, Any], own: dict[str, Any], world_size: int) -> dict[str, Any]:
    """The state as a checkpoint has it, with the own part of the same mark. The random states of the other
    ranks are not known; each rank uses its own."""
    model = with_versions({**state["model"], **own["buffers"]}, state["model"])
    return {**state, "model": model, **of_rank(own, state["flushed_step"], world_size)}


def of_rank(own: dict[str, Any], flushed_step: int, world_size: int) -> dict[str, Any]:
    """What a state has of a rank: its random states, and its losses after `flushed_step`."""
    losses = [(int(n), loss, int(m), w) for n, loss, m, w in own["losses"][: int(own["count"])].tolist()]
    return {
        "rng_of_ranks": own["rng"].expand(world_size, -1),
        "losses": [each for each in losses if each[0] > flushed_step],
    }


class OwnPart:
    """One of the two own parts in the mapped file.

    Numbers are written as plain memory. An operation of torch on a number takes 30 µs at this moment, because
    the step has just filled the caches of the processor.
    """

    def __init__(self, tensors: dict[str, Any]) -> None:
        self._rng, self._losses, self._count = map(
            memory_of, (tensors["rng"], tensors["losses"], tensors["count"])
        )
        self.buffers: list[torch.Tensor] = [*tensors["buffers"].values()]

    def fits(self, buffers: list[torch.Tensor]) -> bool:
        return [(b.shape, b.dtype) for b in buffers] == [(b.shape, b.dtype) for b in self.buffers]

    def write(self, buffers: list[torch.Tensor], losses: array[float]) -> None:
        packed, of_torch = cpu_states()
        self._rng[: len(packed)] = packed
        self._rng[len(packed) : len(packed) + of_torch.nbytes] = memory_of(of_torch)
        if buffers:
            torch._foreach_copy_(self.buffers, buffers)
        self._losses[: 8 * len(losses)] = memoryview(losses).cast("B")
        self._count.cast("q")[0] = len(losses) // _COLUMNS


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor of the CPU, which the caller keeps alive."""
    return memoryview((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")


class LastStep:
    """The last completed step of this rank.

    A mark identifies a state: twice its step, plus 1 after an evaluation of that step. It is 0 while the
    state changes. The training thread changes it; another thread calls `state` and `is_still`.
    """

    is_whole = False  # whether the own part of a rank is its whole state

    def __init__(
        self,
        model: nn.Module,
        meter: Meter,
        rank_info: RankInfo,
        most_losses: int,
        state: Callable[[], State],
    ) -> None:
        """
        Args:
            most_losses: of a rank between two flushes of the meter. After more of them nothing is kept.
            state: how far the training is, and the state that all ranks share, live tensors.
        """
        self._model, self._meter, self._rank_info = model, meter, rank_info
        self._most_losses, self._state = most_losses, state
        self._mark = self._written = 0
        self._parts: tuple[OwnPart, OwnPart] | None = None
        self._losses = array("d")  # step, loss, samples, weight: as often as the meter has added
        self._flushed_step = self._parts_written = 0
        self._parameters, self._versions = [*model.parameters()], list[int]()
        self._places: dict[str, tuple[nn.Module, str]] = {}

    def open(self, path: Path, room_bytes: float) -> None:
        """Keep the own part in a new file, if that is possible without slowing down the steps."""
        places = _buffers_of(self._model)
        if places is None:
            return
        self._places, self._names = places, self._model.state_dict().keys()
        buffers = dict(zip(places, self._buffers(), strict=True))
        self._create(path, min(room_bytes, 2 * _MOST_BYTES), buffers)

    def _create(
        self,
        path: Path,
        room_bytes: float,
        buffers: dict[str, torch.Tensor],
        more: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        """Create the file of two own parts, with buffers like these and what `more` makes for each, and map
        it; not if it needs more than `room_bytes`."""

        def part() -> dict[str, Any]:
            return {
                "rng": pack_rng(self._rank_info.device),
                "losses": torch.zeros(self._most_losses, _COLUMNS, dtype=torch.float64),
                "count": torch.zeros((), dtype=torch.int64),
                # With their strides: fused optimizers take the elements as they are in memory. Empty, so that
                # no page of them is in the memory of this process.
                "buffers": {n: torch.empty_like(b, device="cpu") for n, b in buffers.items()},
                **more(),
            }

        try:
            parts = [part(), part()]
            if sum(tensor.nbytes for tensor in tree_leaves(parts) if not tensor.is_meta) > room_bytes:
                return
            torch.save({"marks": torch.zeros(2, dtype=torch.int64), "parts": parts}, path)
        except (OSError, RuntimeError):  # there is less room than the node has said
            path.unlink(missing_ok=True)  # it may be large
            return
        with set_default_mmap_options(mmap.MAP_SHARED):
            self._mapped = mapped = _mapped(path)
        self._marks = memory_of(mapped["marks"]).cast("q")
        self._parts = OwnPart(mapped["parts"][0]), OwnPart(mapped["parts"][1])

    def _buffers(self) -> list[torch.Tensor]:
        """Those of now: a model may replace the tensor of a buffer."""
        return [cast("torch.Tensor", module._buffers[name]) for module, name in self._places.values()]

    def changes(self) -> None:
        """The state changes from here on, until `completed`."""
        self._mark = 0

    def completed(self, mark: int) -> None:
        """The state is that of `mark`, and stays so until `changes`."""
        if self._parts is None or mark == self._mark:
            return
        self.keep_own_part(mark)
        self._versions = [parameter._version for parameter in self._parameters]
        self._mark = mark

    def keep_own_part(self, mark: int) -> None:
        """Write the own part, unless it was written with this mark. Also called before the optimizer step, if
        nothing can change the own part after it: a rank that dies in the optimizer step then has written it.
        """
        if self._parts is not None and mark != self._written:
            self._write(mark, self._buffers(), lambda part: None)

    def _write(
        self, mark: int, buffers: list[torch.Tensor], write_more: Callable[[dict[str, Any]], None]
    ) -> None:
        """Write the older own part anew. `write_more` writes to its further tensors."""
        number, parts = self._parts_written % 2, self._parts
        self._parts_written += 1
        self._add_losses()
        has_room = len(self._losses) <= _COLUMNS * self._most_losses
        if parts is None or not parts[number].fits(buffers) or not has_room:
            self._parts = None  # the model has replaced a buffer by one of another kind
            return
        self._marks[number] = 0  # a kill from here on leaves the other part
        parts[number].write(buffers, self._losses)
        write_more(self._mapped["parts"][number])
        self._marks[number] = self._written = mark

    def _add_losses(self) -> None:
        if self._meter.flushed_step != self._flushed_step:
            self._flushed_step, self._losses = self._meter.flushed_step, array("d")
        for step, loss, samples, weight in self._meter.added[len(self._losses) // _COLUMNS :]:
            self._losses.extend((step, float(loss), samples, float(weight)))

    def state(self) -> tuple[int, SaveProgress, dict[str, Any]] | None:
        """The mark and the state of the last step without the own part, or None if it changes now. What was
        read of its tensors counts only if it `is_still` the same afterwards."""
        mark = self._mark
        if not self.is_still(mark):
            return None
        progress, state = self._state()
        if state["model"].keys() != self._names:  # it has a new buffer
            return None
        model = {name: value for name, value in state["model"].items() if name not in self._places}
        model = with_versions(model, state["model"])
        return mark, progress, {**state, "model": model, "mark": mark}

    def is_still(self, mark: int) -> bool:
        """Whether the state is that of this mark, and no forward pass has changed a parameter since."""
        versions = [parameter._version for parameter in self._parameters]
        return mark != 0 and mark == self._mark and versions == self._versions


def _buffers_of(model: nn.Module) -> dict[str, tuple[nn.Module, str]] | None:
    """The module of each buffer in the model's state_dict, and its name there. None if the state_dict has
    something else that a forward pass could change, or a buffer that is not plain memory."""
    places = {
        f"{prefix}.{name}".removeprefix(".").replace(WRAPPER, ""): (module, name)
        for prefix, module in model.named_modules(remove_duplicate=False)
        for name, buffer in module._buffers.items()
        if _is_plain(buffer) and name not in module._non_persistent_buffers_set
    }
    rest = {
        name
        for name, value in model.state_dict(keep_vars=True).items()
        if not isinstance(value, nn.Parameter) and not (isinstance(value, torch.Tensor) and not value.numel())
    }
    return places if rest == places.keys() else None


def _is_plain(buffer: torch.Tensor | None) -> bool:
    """Whether it is memory of the CPU, and has any."""
    if buffer is None or type(buffer) is not torch.Tensor or buffer.layout != torch.strided:
        return False
    return buffer.device.type == "cpu" and not buffer.is_quantized and buffer.numel() > 0
