"""A fake of NVML: the functions of pynvml that clustertrain calls, for GPUs that a test describes.

What it returns and raises has pynvml's types; whether a real driver returns the same is not tested here.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace

import pytest


@dataclass
class FakeGpu:
    """A GPU; with `part_of` it is a part of that GPU, made by MIG."""

    uuid: str
    pci: str = "00000000:1B:00.0"
    name: str = "NVIDIA H100 80GB HBM3"
    processes: dict[int, int | None] = field(default_factory=dict)  # pid: bytes
    part_of: FakeGpu | None = None


class NVMLError(Exception):
    """pynvml's base class of errors."""


def install(
    monkeypatch: pytest.MonkeyPatch,
    *gpus: FakeGpu,
    is_found: bool = True,
) -> None:
    """Replace pynvml by a driver with these GPUs; with `is_found` False the library is missing."""

    def init() -> None:
        if not is_found:
            raise NVMLError("NVML Shared Library Not Found")

    def by_index(index: int) -> FakeGpu:
        whole = [gpu for gpu in gpus if gpu.part_of is None]
        if index >= len(whole):
            raise NVMLError("Invalid Argument")
        return whole[index]

    def by_uuid(uuid: str) -> FakeGpu:
        for gpu in gpus:
            if gpu.uuid == uuid:
                return gpu
        raise NVMLError("Not Found")

    def pci_info(gpu: FakeGpu) -> SimpleNamespace:
        if gpu.part_of is not None:
            raise NVMLError("Not Supported")
        return SimpleNamespace(busId=gpu.pci)

    module = ModuleType("pynvml")
    module.__dict__.update(
        NVMLError=NVMLError,
        nvmlInit=init,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: sum(gpu.part_of is None for gpu in gpus),
        nvmlDeviceGetHandleByIndex=by_index,
        nvmlDeviceGetHandleByUUID=by_uuid,
        nvmlDeviceGetUUID=lambda gpu: gpu.uuid,
        nvmlDeviceGetName=lambda gpu: gpu.name,
        nvmlDeviceGetPciInfo=pci_info,
        nvmlDeviceGetDeviceHandleFromMigDeviceHandle=lambda gpu: gpu.part_of,
        nvmlDeviceGetComputeRunningProcesses=lambda gpu: [
            SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in gpu.processes.items()
        ],
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)
