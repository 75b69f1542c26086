"""Random states of Python, numpy, and torch on the CPU and on one GPU."""

from __future__ import annotations

import ctypes
import hashlib
import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from clustertrain.training.ranks.distributed import gather_over_ranks

if TYPE_CHECKING:
    from clustertrain.training.ranks.distributed import RankInfo

try:
    import numpy as np
except ImportError:  # torch does not require numpy
    np = None  # type: ignore[assignment]  # means "not installed"

_PYTHON = struct.Struct("<625I?d")  # Mersenne Twister words and position, gauss_next
_NUMPY = struct.Struct("<624IIId")  # Mersenne Twister words, position, has_gauss, cached_gaussian
_NUMPY_REST = struct.Struct("<IId")  # without the words
_NUMPY_GENERATOR_BYTES = 625 * 4  # words and position: the struct mt19937_state in numpy's sources
_TORCH_BYTES = torch.default_generator.get_state().numel()
_CUDA_BYTES = 16  # Philox seed and offset
_SIZES = {"python": _PYTHON.size, "numpy": _NUMPY.size, "torch": _TORCH_BYTES, "cuda": _CUDA_BYTES}


def derive_seed(*parts: int) -> int:
    """A seed of 63 bits from several numbers; other numbers give another seed."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_all(seed: int, rank: int) -> None:
    """Seed every generator: rank 0 with `seed` itself, each other rank with a derived seed."""
    value = seed if rank == 0 else derive_seed(seed, rank)
    torch.manual_seed(value)  # every GPU's too
    random.seed(value)
    if np is not None:
        np.random.seed(value % 2**32)


@contextmanager
def private_rng(seed: int) -> Iterator[None]:
    """Inside, Python's, numpy's and torch's CPU generators start from `seed`; afterwards they are
    restored."""
    outer = _cpu_states()
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    if np is not None:
        np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        _set_cpu_states(outer)


class KeptRng:
    """Python's, numpy's and torch's CPU generators, for a stream that is read in parts. Between the parts
    their states are kept here, and the process has its own."""

    def __init__(self, seed: int) -> None:
        with private_rng(seed):
            self._states = _cpu_states()

    @contextmanager
    def used(self) -> Iterator[None]:
        outer = _cpu_states()
        _set_cpu_states(self._states)
        try:
            yield
        finally:
            self._states = _cpu_states()
            _set_cpu_states(outer)


def _cpu_states() -> tuple[Any, Any, Any]:
    of_numpy: Any = np.random.get_state() if np is not None else None
    return random.getstate(), torch.default_generator.get_state(), of_numpy


def _set_cpu_states(states: tuple[Any, Any, Any]) -> None:
    of_python, of_torch, of_numpy = states
    random.setstate(of_python)
    torch.default_generator.set_state(of_torch)
    if np is not None:
        np.random.set_state(of_numpy)


def pack_rng(device: torch.device) -> torch.Tensor:
    """All random states as uint8 (bytes,), with the same length on all ranks; it loads with weights_only."""
    of_cuda = torch.zeros(_CUDA_BYTES, dtype=torch.uint8)
    if device.type == "cuda":
        of_cuda = torch.cuda.get_rng_state(device)
    parts = [_bytes(_pack_python()), _bytes(_pack_numpy()), torch.get_rng_state(), of_cuda]
    return torch.cat(parts)


def rng_by_name(packed: torch.Tensor) -> dict[str, torch.Tensor]:
    """The states that `pack_rng` packed, each by the name of its library."""
    return dict(zip(_SIZES, torch.split(packed, [*_SIZES.values()]), strict=True))


def restore_rng(packed: torch.Tensor, device: torch.device) -> None:
    """Set the random states that `pack_rng` packed; those of a GPU only on a GPU.

    Raises:
        ValueError: the tensor has another length.
    """
    sizes = [*_SIZES.values()]
    if packed.numel() != sum(sizes):
        raise ValueError(
            f"The random states have {packed.numel()} bytes; {sum(sizes)} = {sizes} are expected."
        )
    python, numpy, of_torch, of_cuda = torch.split(packed.cpu(), sizes)
    *words, has_gauss, gauss = _PYTHON.unpack(bytes(python.tolist()))
    random.setstate((random.getstate()[0], tuple(words), gauss if has_gauss else None))
    if np is not None:
        *keys, position, has_cached, cached = _NUMPY.unpack(bytes(numpy.tolist()))
        np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), position, has_cached, cached))
    torch.set_rng_state(of_torch.clone())
    if device.type == "cuda":
        torch.cuda.set_rng_state(of_cuda.clone(), device)


@contextmanager
def restoring_rng(device: torch.device) -> Iterator[None]:
    """Afterwards all random states are as before."""
    packed = pack_rng(device)
    try:
        yield
    finally:
        restore_rng(packed, device)


class RngReader:
    """Reads the random states of the CPU after each step, in less time than `pack_rng`.

    numpy needs longer for its state than Python and torch together. So it is asked only if the memory of its
    generator has changed, or if it has the second of two Gaussian numbers left, which is kept elsewhere.
    """

    def __init__(self) -> None:
        self._python_state, self._python = random.getstate(), _pack_python()
        self._numpy = _pack_numpy()
        if np is not None:
            self._generator = np.random.mtrand.get_bit_generator()
            memory = ctypes.c_char * _NUMPY_GENERATOR_BYTES
            self._memory = memory.from_address(self._generator.ctypes.state_address)

    def packed(self) -> tuple[bytes, torch.Tensor]:
        """What `pack_rng` packs: the states of Python and numpy, and that of torch, uint8 (bytes,)."""
        if (state := random.getstate()) != self._python_state:
            self._python_state, self._python = state, _pack_python()
        if np is not None and not self._is_numpy_unchanged():
            self._numpy = _pack_numpy()
        return self._python + self._numpy, torch.get_rng_state()

    def _is_numpy_unchanged(self) -> bool:
        words, has_gauss = self._numpy[:_NUMPY_GENERATOR_BYTES], self._numpy[_NUMPY_GENERATOR_BYTES]
        is_same = np.random.mtrand.get_bit_generator() is self._generator
        return is_same and not has_gauss and self._memory.raw == words


def gather_rng(rank_info: RankInfo) -> torch.Tensor:
    """The random states of all ranks: uint8 (world_size, bytes), on every rank. It is a collective."""
    return gather_over_ranks(pack_rng(rank_info.device), rank_info)


def _pack_python() -> bytes:
    _, words, gauss = random.getstate()
    return _PYTHON.pack(*words, gauss is not None, gauss or 0.0)


def _pack_numpy() -> bytes:
    if np is None:
        return bytes(_NUMPY.size)
    state: Any = np.random.get_state()  # (name, words, position, has_gauss, cached_gaussian)
    words: bytes = state[1].astype("<u4").tobytes()
    return words + _NUMPY_REST.pack(*state[2:])


def _bytes(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
