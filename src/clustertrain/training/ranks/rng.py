"""Random states of Python, numpy, and torch on the CPU and on one GPU."""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from clustertrain.training.ranks.distributed import RankInfo, gather_over_ranks

_PYTHON = struct.Struct("<625I?d")  # Mersenne Twister words and position, gauss_next
_NUMPY = struct.Struct("<624IIId")  # Mersenne Twister words, position, has_gauss, cached_gaussian
_TORCH_BYTES = torch.default_generator.get_state().numel()
_CUDA_BYTES = 16  # Philox seed and offset
_SIZES = {"python": _PYTHON.size, "numpy": _NUMPY.size, "torch": _TORCH_BYTES, "cuda": _CUDA_BYTES}


def derive_seed(*parts: int) -> int:
    """Derive a seed of 63 bits from several numbers; other numbers give another seed."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_all(seed: int, rank: int) -> None:
    """Seed every generator: rank 0 with `seed` itself, each other rank with a derived seed."""
    value = seed if rank == 0 else derive_seed(seed, rank)
    torch.manual_seed(value)  # every GPU's too
    random.seed(value)
    np.random.seed(value % 2**32)


@contextmanager
def private_rng(seed: int) -> Iterator[None]:
    """Start Python's, numpy's and torch's CPU generators from `seed` inside, and restore them afterwards."""
    outer = _cpu_states()
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        _set_cpu_states(outer)


class KeptRng:
    """Python's, numpy's and torch's CPU generators, for a stream that is read in parts.

    Between the parts their states are kept here, and the process has its own.
    """

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


def _cpu_states() -> tuple[Any, torch.Tensor, Any]:
    return random.getstate(), torch.default_generator.get_state(), np.random.get_state()


def _set_cpu_states(states: tuple[Any, torch.Tensor, Any]) -> None:
    of_python, of_torch, of_numpy = states
    random.setstate(of_python)
    torch.default_generator.set_state(of_torch)
    np.random.set_state(of_numpy)


def pack_rng(device: torch.device) -> torch.Tensor:
    """Pack all random states as uint8 (bytes,), with the same length on all ranks.

    The tensor loads with weights_only.
    """
    of_cuda = torch.zeros(_CUDA_BYTES, dtype=torch.uint8)
    if device.type == "cuda":
        of_cuda = torch.cuda.get_rng_state(device)
    _, words, gauss = random.getstate()
    of_numpy: Any = np.random.get_state()  # name, words, position, has_gauss, cached_gaussian
    packed = _PYTHON.pack(*words, gauss is not None, gauss or 0.0)
    packed += _NUMPY.pack(*of_numpy[1].tolist(), *of_numpy[2:])
    of_torch = torch.get_rng_state()
    return torch.cat([torch.frombuffer(bytearray(packed), dtype=torch.uint8), of_torch, of_cuda])


def rng_by_name(packed: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the states that `pack_rng` packed, each by the name of its library."""
    return dict(zip(_SIZES, torch.split(packed, [*_SIZES.values()]), strict=True))


def restore_rng(packed: torch.Tensor, device: torch.device) -> None:
    """Set the random states that `pack_rng` packed; those of a GPU only on a GPU."""
    python, numpy, of_torch, of_cuda = rng_by_name(packed.cpu()).values()
    *words, has_gauss, gauss = _PYTHON.unpack(bytes(python.tolist()))
    random.setstate((random.getstate()[0], tuple(words), gauss if has_gauss else None))
    *words, position, has_gauss, gauss = _NUMPY.unpack(bytes(numpy.tolist()))
    np.random.set_state(("MT19937", np.array(words, dtype=np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(of_torch.clone())
    if device.type == "cuda":
        torch.cuda.set_rng_state(of_cuda.clone(), device)


@contextmanager
def restoring_rng(device: torch.device) -> Iterator[None]:
    """Restore all random states afterwards."""
    packed = pack_rng(device)
    try:
        yield
    finally:
        restore_rng(packed, device)


def gather_rng(rank_info: RankInfo) -> torch.Tensor:
    """Gather the random states of all ranks, uint8 (world_size, bytes), on every rank; it is a collective."""
    return gather_over_ranks(pack_rng(rank_info.device), rank_info)
