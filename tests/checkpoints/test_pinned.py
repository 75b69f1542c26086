"""Pinned memory without a GPU: CUDA's two calls are recorded."""

import gc
import io

import pytest
import torch

from clustertrain.checkpoints.pinned import CHUNK_BYTES, PinnedMemory


class Cuda:
    def __init__(self):
        self.pinned = {}

    def register(self, address, size_bytes):
        assert address % 4096 == size_bytes % 4096 == 0
        assert not any(a < address + size_bytes and address < a + size for a, size in self.pinned.items())
        self.pinned[address] = size_bytes

    def unregister(self, address):
        del self.pinned[address]


@pytest.fixture
def cuda():
    return Cuda()


@pytest.fixture
def memory(cuda):
    return PinnedMemory(cuda.register, cuda.unregister)


def rounded(size_bytes):
    """What torch's allocator takes."""
    return 1 << (size_bytes - 1).bit_length()


@pytest.mark.parametrize("megabytes", [[9, 17, 33], [65] * 3, [5] * 40, [1, 33, 2, 65, 7, 7, 7]])
def test_a_state_takes_little_more_than_its_bytes(memory, cuda, megabytes):
    """torch would round 33 MiB up to 64, and 65 up to 128."""
    kept = [memory.empty_like(torch.empty((size << 20) + 4, dtype=torch.uint8)) for size in megabytes]
    size_bytes = sum(tensor.nbytes for tensor in kept)
    reserved_bytes = sum(cuda.pinned.values())
    assert reserved_bytes <= size_bytes * 9 / 8 + CHUNK_BYTES
    if min(megabytes) > 8:
        assert reserved_bytes - size_bytes < 4096 * len(kept)
        assert sum(rounded(tensor.nbytes) for tensor in kept) > 1.5 * size_bytes


def test_the_tensors_are_apart_aligned_and_are_saved_with_their_own_bytes(memory):
    sources = [
        torch.rand(5, 3),
        torch.rand(4, 3, 2, 2).to(memory_format=torch.channels_last),
        torch.tensor(3.0),
        torch.arange(7),
        torch.ones(9, dtype=torch.bfloat16),
        torch.tensor([True, False]),
        torch.empty(0, 3),
    ]
    made = [memory.empty_like(source) for source in sources]
    for copy, source in zip(made, sources, strict=True):
        copy.copy_(source)
        assert copy.stride() == source.stride()
        assert copy.data_ptr() % 64 == 0 or not copy.numel()
        assert copy.untyped_storage().nbytes() == source.numel() * source.element_size()
    file = io.BytesIO()
    torch.save(made, file)
    file.seek(0)
    for copy, source in zip(torch.load(file, weights_only=True), sources, strict=True):
        assert torch.equal(copy, source)


@pytest.mark.slow
def test_pages_are_released_with_their_last_tensor(cuda):
    memory = PinnedMemory(cuda.register, cuda.unregister)
    own = memory.empty_like(torch.empty(9 << 20, dtype=torch.uint8))
    first, second = (memory.empty_like(torch.empty(4)) for _ in range(2))
    assert len(cuda.pinned) == 2
    del own
    gc.collect()
    assert list(cuda.pinned.values()) == [CHUNK_BYTES]
    del memory
    del first
    gc.collect()
    second.fill_(1)
    assert len(cuda.pinned) == 1
    del second
    gc.collect()
    assert cuda.pinned == {}


def test_what_cuda_refuses_to_pin_is_pageable(cuda):
    """A container with a small limit on locked memory."""

    def refused(address, size_bytes):
        raise RuntimeError("CUDA error: out of memory\nCompile with ...")

    memory = PinnedMemory(refused, cuda.unregister)
    tensor = memory.empty_like(torch.empty(3)).fill_(2.0)
    assert (cuda.pinned, memory.refusal) == ({}, "CUDA error: out of memory")
    assert tensor.tolist() == [2.0, 2.0, 2.0]
    del tensor
    gc.collect()
    assert cuda.pinned == {}
