"""The device of the GPU suite, and the table of what it measures.

`GPU_SUITE_DEVICE=cpu make test-gpu` runs the suite on a CPU: that proves the tests, not the GPU. Limits of
time and memory are not checked then.
"""

import os
from collections.abc import Callable

import pytest
import torch

from clustertrain.training.ranks.distributed import RankInfo

IS_GPU = os.environ.get("GPU_SUITE_DEVICE", "cuda") == "cuda"
DEVICE = torch.device("cuda", 0) if IS_GPU else torch.device("cpu")
RANK = RankInfo(0, 0, 1, DEVICE)
needs_a_gpu = pytest.mark.skipif(
    IS_GPU and not torch.cuda.is_available(), reason="no CUDA device: GPU tests need one"
)
needs_cuda = pytest.mark.skipif(not IS_GPU, reason="the suite runs on a CPU: this test needs CUDA")

Row = Callable[..., None]
"""row(what, unit, **measured): one line of the table."""


def synchronize() -> None:
    """Wait for the device's queued kernels."""
    if IS_GPU:
        torch.cuda.synchronize()
