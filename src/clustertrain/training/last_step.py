"""The last step that a rank has completed, kept so that it survives the death of another rank.

Until the next optimizer step a rank has all that a checkpoint of its last step contains, except what the
forward pass of the next step has changed: its buffers, its random states and its losses. This own part of a
rank is copied after each step into a file in memory, which survives a SIGKILL of the rank. With the rest,
which is the same on all ranks and which any rank that is alive can write, it is a checkpoint of that step.

A file has the own parts of the last two steps: ranks may be one step apart when one of them dies.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from clustertrain.training.ranks.host import SaveProgress
from clustertrain.training.ranks.rng import pack_rng
from clustertrain.training.step.running_loss import Meter

_MOST_BYTES = 8 << 20  # of a file: copying more would slow the steps down
_ALIGNED = 64
_HEAD = struct.Struct("<qqq")  # of an own part: its mark, or 0 while it is written; its first loss, the end
_LOSS = struct.Struct("<qdq")  # step, loss, samples
_LENGTH = struct.Struct("<q")

State = tuple[SaveProgress, dict[str, Any]]


@dataclass(frozen=True)
class _Layout:
    """Where the parts of the file are; written at its beginning.

    Attributes:
        buffers: name in the model's state_dict, dtype and shape.
        losses: the room for them, a ring that both own parts share.
    """

    rng_bytes: int
    buffers: list[tuple[str, str, list[int]]]
    losses: int

    @property
    def offsets(self) -> list[int]:
        """Of the random states and of each buffer in an own part, then its size."""
        sizes = [_HEAD.size, self.rng_bytes]
        sizes += [math.prod(shape) * _dtype(name).itemsize for _, name, shape in self.buffers]
        offsets = [0]
        for size in sizes:
            offsets.append(_aligned(offsets[-1] + size))
        return offsets[1:]

    def to_bytes(self) -> bytes:
        text = json.dumps([self.rng_bytes, self.buffers, self.losses]).encode()
        return _LENGTH.pack(len(text)) + text


class _File:
    """A mapped file of this layout."""

    def __init__(self, content: Any) -> None:
        """
        Args:
            content: the bytes of the file, a mapping to write to it.
        """
        self._content = content
        (length,) = _LENGTH.unpack_from(content)
        self.layout = _Layout(*json.loads(bytes(content[_LENGTH.size : _LENGTH.size + length])))
        offsets, first = self.layout.offsets, _aligned(_LENGTH.size + length)
        self._parts = [first, first + offsets[-1]]
        self._losses = first + 2 * offsets[-1]

    def tensors(self, part: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The random states and the buffers of one of the two parts, in the file itself."""
        layout, start = self.layout, self._parts[part]
        rng = torch.frombuffer(
            self._content, dtype=torch.uint8, count=layout.rng_bytes, offset=start + layout.offsets[0]
        )
        buffers = {
            name: torch.frombuffer(
                self._content, dtype=_dtype(dtype), count=math.prod(shape), offset=start + offset
            ).reshape(shape)
            for (name, dtype, shape), offset in zip(layout.buffers, layout.offsets[1:], strict=False)
        }
        return rng, buffers

    def head(self, part: int) -> tuple[int, int, int]:
        mark, first, end = _HEAD.unpack_from(self._content, self._parts[part])
        return mark, first, end

    def set_head(self, part: int, mark: int, first: int = 0, end: int = 0) -> None:
        _HEAD.pack_into(self._content, self._parts[part], mark, first, end)

    def loss(self, number: int) -> tuple[int, float, int]:
        step, loss, samples = _LOSS.unpack_from(self._content, self._place(number))
        return step, loss, samples

    def set_loss(self, number: int, step: int, loss: float, samples: int) -> None:
        _LOSS.pack_into(self._content, self._place(number), step, loss, samples)

    def _place(self, number: int) -> int:
        return self._losses + number % self.layout.losses * _LOSS.size


@dataclass(frozen=True)
class OwnPart:
    """What only one rank has of its last step: random states, buffers, and its losses since they were last
    summed over all ranks, each with its step and its samples."""

    rng: torch.Tensor
    buffers: dict[str, torch.Tensor]
    losses: list[tuple[int, float, int]]


def marks_in(file: Path) -> set[int]:
    """The marks of the complete own parts in a file."""
    found = _File(file.read_bytes())
    return {found.head(part)[0] for part in (0, 1)} - {0}


def read_own_part(file: Path, mark: int) -> OwnPart:
    """
    Raises:
        KeyError: the file has no complete own part with this mark.
    """
    found = _File(bytearray(file.read_bytes()))
    for part in (0, 1):
        found_mark, first, end = found.head(part)
        if found_mark == mark:
            return OwnPart(*found.tensors(part), [found.loss(number) for number in range(first, end)])
    raise KeyError(mark)


class LastStep:
    """The last completed step of this rank.

    `mark` identifies a state: twice its step, plus 1 after an evaluation of that step. It is 0 while the
    state changes. The training thread changes it; another thread calls `state`.
    """

    def __init__(
        self,
        model: nn.Module,
        meter: Meter,
        device: torch.device,
        most_losses: int,
        state: Callable[[], State],
    ) -> None:
        """
        Args:
            most_losses: of a rank between two flushes of the meter.
            state: how far the training is, and the state that all ranks share, live tensors.
        """
        self._model, self._meter, self._device = model, meter, device
        self._most_losses, self._state = most_losses, state
        self.mark = 0
        self._file: _File | None = None
        self._written = self._in_part = self._first = self._end = self._kept = 0
        self._flushed_step = 0
        self._parameters, self._versions = [*model.parameters()], list[int]()
        self._places: dict[str, tuple[nn.Module, str]] = {}

    def open(self, path: Path) -> None:
        """Keep the own part in a new file, if it can be kept without slowing down the steps.

        Raises:
            OSError: there is no room.
        """
        places = _buffers_of(self._model)
        if places is None:
            return
        self._places = places
        found = {name: module._buffers[key] for name, (module, key) in self._places.items()}
        buffers = [(n, _name_of(b.dtype), list(b.shape)) for n, b in found.items() if b is not None]
        layout = _Layout(pack_rng(self._device).numel(), buffers, 2 * self._most_losses)
        head = layout.to_bytes()
        size = _aligned(len(head)) + 2 * layout.offsets[-1] + layout.losses * _LOSS.size
        if size > _MOST_BYTES:
            return
        with path.open("xb+") as file:
            os.posix_fallocate(file.fileno(), 0, size)  # a page that is missing later would be a SIGBUS
            file.write(head)
            file.flush()
            self._file = _File(mmap.mmap(file.fileno(), size))
        self._tensors = [self._file.tensors(part) for part in (0, 1)]

    def changes(self) -> None:
        """The state changes from here on, until `completed`."""
        self.mark = 0

    def completed(self, mark: int) -> None:
        """The state is that of `mark`, and stays so until `changes`."""
        if self._file is None:
            return
        self.keep_own_part(mark)
        self._versions = [parameter._version for parameter in self._parameters]
        self.mark = mark

    def keep_own_part(self, mark: int) -> None:
        """Write the own part, unless it was written with this mark. Also called before the optimizer step, if
        nothing can change the own part after it: a rank that dies in the optimizer step then has written it.
        """
        file = self._file
        if file is None or mark == self._written:
            return
        part = self._in_part = 1 - self._in_part
        file.set_head(part, 0)  # a kill from here on leaves the other part
        rng, buffers = self._tensors[part]
        rng.copy_(pack_rng(self._device))
        kept = list(buffers.values())
        live = [b for module, key in self._places.values() if (b := module._buffers[key]) is not None]
        if [(b.shape, b.dtype) for b in live] != [(k.shape, k.dtype) for k in kept]:
            self._file = None  # the model has replaced a buffer by one of another kind
            return
        if kept:
            torch._foreach_copy_(kept, live)
        self._add_losses(file)
        file.set_head(part, mark, self._first, self._end)
        self._written = mark

    def _add_losses(self, file: _File) -> None:
        if self._meter.flushed_step != self._flushed_step:
            self._flushed_step, self._first, self._kept = self._meter.flushed_step, self._end, 0
        added = self._meter.added
        for step, loss, samples in added[self._kept :]:
            file.set_loss(self._end, step, float(loss), samples)
            self._end += 1
        self._kept = len(added)

    def state(self) -> tuple[int, SaveProgress, dict[str, Any]] | None:
        """The mark and the state of the last step without the own part, or None if it changes now, or the
        forward pass of the next step has changed parameters. What is read of it counts only if `mark` is
        still the same afterwards."""
        mark = self.mark
        if not mark or self._versions != [parameter._version for parameter in self._parameters]:
            return None
        progress, state = self._state()
        model = {name: value for name, value in state["model"].items() if name not in self._places}
        return mark, progress, {**state, "model": model, "mark": mark}


def with_own_part(state: dict[str, Any], own: OwnPart, world_size: int) -> dict[str, Any]:
    """The state as a checkpoint has it. The random states of the other ranks are not known; each rank uses
    its own."""
    losses = [loss for loss in own.losses if loss[0] > state["flushed_step"]]
    model = {**state["model"], **own.buffers}
    return {**state, "model": model, "rng_of_ranks": own.rng.expand(world_size, -1), "losses": losses}


def _buffers_of(model: nn.Module) -> dict[str, tuple[nn.Module, str]] | None:
    """The module of each buffer in the model's state_dict, and its name there. None if the state_dict has
    something else that a forward pass could change."""
    places = {
        f"{prefix}.{name}" if prefix else name: (module, name)
        for prefix, module in model.named_modules(remove_duplicate=False)
        for name, buffer in module._buffers.items()
        if buffer is not None and buffer.numel() and name not in module._non_persistent_buffers_set
    }
    rest = {
        name
        for name, value in model.state_dict(keep_vars=True).items()
        if not isinstance(value, nn.Parameter) and not (isinstance(value, torch.Tensor) and not value.numel())
    }
    return places if rest == places.keys() else None


def _dtype(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
