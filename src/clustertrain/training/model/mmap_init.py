"""A model is built in files: a rank then builds a model that is larger than its memory, for FSDP to divide.

The tensors of the model are mapped files of the node's temporary folder, so the kernel can move them to the
disk. Their values are those of any other memory: `Task.model()` draws the same random numbers as with DDP,
which building on the meta device would not. A file ends with its tensor.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_LEAST_BYTES = 1 << 20  # smaller tensors stay in memory
# A kernel with cgroups of version 1 does not slow down a process that changes pages faster than the disk
# takes them, but ends it at its memory limit. So after this many bytes the build waits for the disk.
_UNWRITTEN_BYTES = 256 << 20
_EMPTY = ("aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty")


class MappedInit(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own lacks types
    """Inside, new tensors of the CPU from 1 MiB on are in files. If the folder has no space for one, it stays
    in memory."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self._unwritten: list[mmap.mmap] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        is_new = all(value.alias_info is None for value in func._schema.returns)
        if is_new and isinstance(result, torch.Tensor) and _is_eligible(result, args):
            mapped = self._mapped(result)
            if mapped is not None:
                return mapped if func._schema.name in _EMPTY else mapped.copy_(result)
        return result

    def _mapped(self, like: torch.Tensor) -> torch.Tensor | None:
        """An uninitialized tensor in a file without a name, or None without space for it."""
        if sum(map(len, self._unwritten)) >= _UNWRITTEN_BYTES:
            for each in self._unwritten:
                each.flush()
            self._unwritten.clear()
        with tempfile.TemporaryFile(prefix="clustertrain-model-") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, like.nbytes)  # writing to a full disk later is a SIGBUS
                memory = mmap.mmap(file.fileno(), like.nbytes)
            except OSError:
                return None
        self._unwritten.append(memory)
        return torch.frombuffer(memory, dtype=like.dtype, count=math.prod(like.shape)).view(like.shape)


def _is_eligible(tensor: torch.Tensor, args: Any) -> bool:
    if type(tensor) is not torch.Tensor or tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return False
    if tensor.nbytes < _LEAST_BYTES or not tensor.is_contiguous():
        return False
    address = tensor.untyped_storage().data_ptr()  # some operations return a view without declaring it
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor) and not arg.is_meta]
    return all(arg.untyped_storage().data_ptr() != address for arg in tensors)
