"""A model that is larger than the memory of one rank trains on two, and starts with the weights of DDP."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from cgroups import WITHIN, memory_cgroup
from clustertrain.training.model import mmap_init as file_memory
from clustertrain.training.model.mmap_init import MappedInit
from training.large_model import WEIGHTS_BYTES

pytestmark = pytest.mark.slow

LIMIT_BYTES = WEIGHTS_BYTES * 95 // 100


def _train(strategy: str, world_size: int) -> list[tuple[int, str]]:
    """(exit code, output) of each rank, each in a cgroup of its own."""
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        listener.close()
        processes = []
        for rank in range(world_size):
            cgroup = stack.enter_context(memory_cgroup(LIMIT_BYTES))
            ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "MASTER_PORT": port}
            process = subprocess.Popen(
                [
                    *WITHIN,
                    str(cgroup / "cgroup.procs"),
                    sys.executable,
                    "-m",
                    "training.large_model",
                    strategy,
                ],
                env=os.environ
                | {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
                | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
                | {name: str(value) for name, value in ranks.items()},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            processes.append(process)
        outputs = [process.communicate()[0] for process in processes]
        return [(process.returncode, output) for process, output in zip(processes, outputs, strict=True)]


@pytest.mark.nightly  # 60 CPU seconds, and gigabytes of files; below, the memory of a model in files
def test_weights_larger_than_the_limit_of_a_rank_train_on_two():
    answers = _train("fsdp", 2)
    assert [code for code, _ in answers] == [0, 0], answers
    first, second = (float(loss) for loss in re.findall(r"loss ([\d.]+)", answers[0][1]))
    assert second < first
    (code, output), *_ = _train("ddp", 1)
    assert code == -9 and "loss" not in output, "the kernel ends one rank with the whole model"


class _Odd(nn.Module):
    """What models do when they are built: views, ties, buffers, own random numbers, several dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(600, 600), nn.BatchNorm1d(600), nn.Embedding(600, 600))
        self.table = nn.Parameter(torch.randn(600, 600).mul_(0.02))
        self.low = nn.Parameter(torch.full((1100, 600), 0.5, dtype=torch.bfloat16))
        self.register_buffer("mask", torch.ones(1200, 1200, dtype=torch.bool).tril())
        self.layers[0].weight = self.layers[2].weight
        with torch.no_grad():
            self.layers[0].weight[3].zero_()
            self.table.view(-1)[:5] = 1.0
        self.apply(self._initialize)

    @staticmethod
    def _initialize(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)


def test_a_model_in_files_has_the_same_values_and_the_same_ties():
    torch.manual_seed(4)
    expected, after = _Odd(), torch.rand(1)
    torch.manual_seed(4)
    with MappedInit():
        model = _Odd()
    assert torch.rand(1) == after
    found = model.state_dict()
    for name, value in expected.state_dict().items():
        assert found[name].dtype == value.dtype and torch.equal(found[name], value), name
    assert model.layers[0].weight is model.layers[2].weight
    assert _is_in_file(model.table) and _is_in_file(model.low) and not _is_in_file(expected.table)
    (model.table.sum() + model.low.float().sum()).backward()


def test_without_space_for_a_file_the_tensor_stays_in_memory(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(file_memory.os, "posix_fallocate", full)
    with MappedInit():
        tensor = torch.zeros(600, 600)
    assert not _is_in_file(tensor) and not tensor.any()


def _is_in_file(tensor: torch.Tensor) -> bool:
    address = tensor.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= address < end:
            return "(deleted)" in line
    pytest.fail("no map has the address")
