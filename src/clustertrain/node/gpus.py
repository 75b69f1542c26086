"""The GPUs of this process by NVML: NVIDIA's library for what the driver knows, which needs no CUDA context.

Where NVML does not answer (no driver, another vendor, a container that hides it, no package nvidia-ml-py),
there is nothing to know, and the results are empty. `gpu_count` needs no NVML.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

_T = TypeVar("_T")

_DEVICES = Path("/dev")
_OF_A_GPU = re.compile(r"nvidia\d+")  # nvidiactl and nvidia-uvm are of the driver


@dataclass(frozen=True)
class Gpu:
    """One GPU, or the part of one that MIG makes.

    Attributes:
        uuid: "GPU-…", or "MIG-…" for a part.
        pci: its PCI address, "00000000:1B:00.0"; that of the whole GPU for a part.
        name: "NVIDIA H100 80GB HBM3".
    """

    uuid: str
    pci: str
    name: str

    def __str__(self) -> str:
        return f"{self.uuid} at PCI address {self.pci} ({self.name})"


@dataclass(frozen=True)
class GpuProcess:
    """A process that has memory of a GPU.

    `used_bytes` is None where the driver hides it, as it does for processes of other containers.
    """

    pid: int
    used_bytes: int | None


@dataclass(frozen=True)
class GpuState:
    """A GPU after a failure, and the processes that have memory of it, the largest first."""

    gpu: Gpu
    processes: tuple[GpuProcess, ...]


def gpu_states(gpus: Sequence[Gpu]) -> tuple[GpuState, ...]:
    """Return the states of GPUs of this node."""
    return tuple(GpuState(gpu, processes_on(gpu.uuid)) for gpu in gpus)


def visible_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves to this process, in its order.

    Without the variable, these are all GPUs of the node. A number in it counts in the order of the PCI
    addresses, as CUDA counts GPUs of one kind.
    """
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None and not named.strip():
        return ()
    return _answer(lambda nvml: tuple(_gpu(nvml, handle) for handle in _handles(nvml, named)))


def gpu_count() -> int | None:
    """Return the number of GPUs in CUDA_VISIBLE_DEVICES or, without it, of NVIDIA's device files.

    None if it is unknown: on other vendors' machines and on WSL there are no such files. torch decides in
    the end whether it can use them (worker/machine/gpus.py).
    """
    files = sum(1 for path in _DEVICES.iterdir() if _OF_A_GPU.fullmatch(path.name))
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return files or None
    names = [name.strip() for name in chosen.split(",")]
    names = list(takewhile(lambda name: name not in ("", "-1"), names))
    are_numbers = all(name.isdigit() for name in names)  # else UUIDs; one GPU may have several MIG devices
    return min(len(names), files) if are_numbers and files else len(names)


def processes_on(uuid: str) -> tuple[GpuProcess, ...]:
    """Return the processes that have memory of the GPU, the largest first."""

    def processes(nvml: Any) -> tuple[GpuProcess, ...]:
        running = nvml.nvmlDeviceGetComputeRunningProcesses(nvml.nvmlDeviceGetHandleByUUID(uuid))
        found = [GpuProcess(int(each.pid), each.usedGpuMemory) for each in running]
        return tuple(sorted(found, key=lambda process: -(process.used_bytes or 0)))

    return _answer(processes)


def _answer(question: Callable[[Any], tuple[_T, ...]]) -> tuple[_T, ...]:
    """Return the answer to a question that calls the library, or () if the library does not answer."""
    try:
        import pynvml
    except ModuleNotFoundError:
        return ()
    try:
        pynvml.nvmlInit()
        try:
            return question(pynvml)
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:  # no driver, "not supported" by this GPU, or "GPU is lost"
        return ()


def _handles(nvml: Any, named: str | None) -> list[Any]:
    """Return the handles of the named GPUs, up to the first entry that names none, as CUDA does."""
    if named is None:
        return [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    found = []
    for entry in map(str.strip, named.split(",")):
        try:
            if entry.isdecimal():
                found.append(nvml.nvmlDeviceGetHandleByIndex(int(entry)))
            else:
                found.append(nvml.nvmlDeviceGetHandleByUUID(entry))
        except nvml.NVMLError:
            break
    return found


def _gpu(nvml: Any, handle: Any) -> Gpu:
    uuid = nvml.nvmlDeviceGetUUID(handle)
    whole = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle) if uuid.startswith("MIG-") else handle
    return Gpu(uuid, nvml.nvmlDeviceGetPciInfo(whole).busId, nvml.nvmlDeviceGetName(handle))
