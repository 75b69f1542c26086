"""Pinned host memory for the copy of a state: the GPU writes to it without the CPU.

torch's own allocator of pinned memory rounds each size up to a power of two: a tensor of 33 MiB takes 64 MiB.
Here the memory is our own and is registered with CUDA: a large tensor has its own chunk, small ones share.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

CHUNK_BYTES = 64 << 20
# A tensor of this size has its own chunk, so at most an eighth of a shared one stays unused.
_OWN_CHUNK_BYTES = 8 << 20
_ALIGNMENT_BYTES = 64
_PORTABLE = 1  # cudaHostRegisterPortable: pinned for every CUDA context


class DeviceThread(threading.Thread):
    """A thread with the current CUDA device of the thread that makes it.

    Otherwise its current device is GPU 0, and the first call to CUDA makes a context there, which takes
    memory of the rank that owns GPU 0.
    """

    def __init__(self, target: Callable[..., object], args: tuple[Any, ...], name: str) -> None:
        super().__init__(target=target, args=args, name=name)
        self._device = _current_device()

    def run(self) -> None:
        if self._device is not None:
            torch.cuda.set_device(self._device)
        super().run()


class _Chunk(mmap.mmap):
    """Whole pages, freed when the last tensor that uses them is garbage-collected, in any thread."""

    unregister: Callable[[int], None] | None = None
    address = 0
    device: int | None = None

    def __del__(self) -> None:
        if self.unregister is not None:
            with torch.cuda.device(self.device) if self.device is not None else nullcontext():
                self.unregister(self.address)


class PinnedMemory:
    """Makes tensors in pinned memory; they never move, and are freed when none of their chunk is used.

    Args:
        register, unregister: pin the pages at (address, bytes), and release them; by default CUDA's.
    """

    def __init__(
        self,
        register: Callable[[int, int], None] | None = None,
        unregister: Callable[[int], None] | None = None,
    ) -> None:
        self._register, self._unregister = register or _register, unregister or _unregister
        self._shared: _Chunk | None = None
        self._used_bytes = 0  # of the shared chunk
        self.refusal = ""

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Create a tensor of the same shape, strides and dtype on the CPU; its storage has exactly its bytes.

        If CUDA refuses to pin the memory, it is not pinned, and `refusal` has CUDA's reason.

        Raises:
            OSError: the memory cannot be allocated.
        """
        like = torch.empty_like(tensor, device="meta")
        if not tensor.numel():
            return torch.empty_like(tensor, device="cpu")
        chunk, offset = self._place(like.nbytes)
        flat = torch.frombuffer(chunk, dtype=tensor.dtype, count=like.numel(), offset=offset)
        return flat.as_strided(like.shape, like.stride())

    def _place(self, size_bytes: int) -> tuple[_Chunk, int]:
        if size_bytes >= _OWN_CHUNK_BYTES:
            return self._new_chunk(size_bytes), 0
        if self._shared is None or self._used_bytes + size_bytes > CHUNK_BYTES:
            self._shared, self._used_bytes = self._new_chunk(CHUNK_BYTES), 0
        offset = self._used_bytes
        self._used_bytes += -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        return self._shared, offset

    def _new_chunk(self, size_bytes: int) -> _Chunk:
        whole_pages = -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        chunk = _Chunk(-1, whole_pages)
        address = torch.frombuffer(chunk, dtype=torch.uint8).data_ptr()
        try:
            self._register(address, whole_pages)
        except RuntimeError as error:
            self.refusal = str(error).strip().partition("\n")[0]
            return chunk  # a copy to pageable memory is as whole, and takes longer
        chunk.address, chunk.unregister = address, self._unregister
        chunk.device = _current_device()
        return chunk


def _current_device() -> int | None:
    is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch has no type for it
    return torch.cuda.current_device() if is_used else None


def _register(address: int, size_bytes: int) -> None:
    torch.cuda.check_error(int(_cudart().cudaHostRegister(address, size_bytes, _PORTABLE)))


def _unregister(address: int) -> None:
    _cudart().cudaHostUnregister(address)


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch has no type for it
