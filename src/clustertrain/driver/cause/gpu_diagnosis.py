"""Determines what ended a worker on its GPU: pure functions over error texts and the state of the GPU.

Memory of another process, a GPU that is broken or taken, and memory that cuDNN or NCCL did not get. The texts
are those of torch, of CUDA's runtime, of cuDNN and of NCCL.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from clustertrain.driver.cause.diagnosis import LIMIT, ON_GPU, OUT_OF_MEMORY, Diagnosis
from clustertrain.node.gpus import FABRIC, GpuState
from clustertrain.node.memory_kill import out_of_memory_text
from clustertrain.units import size_bytes, size_text

GPU = "gpu"
RETRY_AFTER_S = 30.0  # what another process needs to end, and CUDA to free its memory

_OUT_OF_MEMORY = re.compile(
    r"(?:CUDA|HIP) out of memory\. Tried to allocate (?P<wanted>[\d.]+ \w+)\. GPU (?P<index>\d+) has a total "
    r"capacity of (?P<total>[\d.]+ \w+) of which (?P<free>[\d.]+ \w+) is free\.(?P<processes>[^\n]*)"
)
_IN_USE = re.compile(r"(?:Process (?P<pid>\d+)|(?P<own>this process)) has (?P<used>[\d.]+ \w+) memory in use")
_TAKEN = re.compile(r"CUDA-capable device\(s\) is/are busy or unavailable|cudaErrorDevicesUnavailable")
_BROKEN = re.compile(
    r"uncorrectable ECC error encountered|cudaErrorECCUncorrectable|"
    r"uncorrectable NVLink error detected during the execution|cudaErrorNvlinkUncorrectable|"
    r"Invalid access of peer GPU memory over nvlink or a hardware error|cudaErrorContained|"
    r"GPU is lost|Unable to determine the device handle for GPU"
)
_NOT_READY = re.compile(r"system not yet initialized|cudaErrorSystemNotReady")
_OF_CUDNN = re.compile(r"CUDNN_STATUS_(?:ALLOC_FAILED|INTERNAL_ERROR_(?:DEVICE|HOST)_ALLOCATION_FAILED)")
_OF_NCCL = re.compile(r"Cuda failure (?:\d+ )?'out of memory'")
_SHM_OF_NCCL = re.compile(r"[^\n]*/dev/shm/nccl-[^\n]*error[^\n]*", re.IGNORECASE)


def diagnose_gpu(
    who: str, message: str, *, tail: str = "", host: str, gpus: Sequence[GpuState], own_pids: Collection[int]
) -> Diagnosis | None:
    """What ended a worker on its GPU, or None if there is no evidence for it.

    Args:
        who, message, tail: as for diagnosis.diagnose.
        host: the worker's node.
        gpus: the worker's GPUs after the failure, or empty if nothing is known of them.
        own_pids: the processes of the run's workers on that node.
    """
    if match := _SHM_OF_NCCL.search(f"{message}\n{tail}"):
        return _of_shm(who, match)
    if match := _OUT_OF_MEMORY.search(message):
        return _of_others_memory(who, match, gpus, own_pids)
    if match := _TAKEN.search(message):
        return _of_taken(who, match, gpus, own_pids)
    if diagnosis := _of_hardware(who, message, host, gpus):
        return diagnosis
    for library, pattern in (("cuDNN", _OF_CUDNN), ("NCCL", _OF_NCCL)):
        if match := pattern.search(message):
            return Diagnosis(OUT_OF_MEMORY, _of_library(who, library, match))
    return None


def _of_others_memory(
    who: str, match: re.Match[str], gpus: Sequence[GpuState], own_pids: Collection[int]
) -> Diagnosis | None:
    """The memory of other processes: torch's message has that of each process that it can see."""
    total, free = _size(match["total"]), _size(match["free"])
    listed = list(_IN_USE.finditer(match["processes"]))
    if not any(each["own"] for each in listed):  # torch sees no processes, as in a container
        return None
    own = sum(_size(each["used"]) for each in listed if each["own"] or int(each["pid"]) in own_pids)
    others = total - free - own
    if others <= max(total // 20, 1 << 30):
        return None
    index = int(match["index"])
    named = [gpus[index]] if index < len(gpus) else []
    pids = [
        f"process {each['pid']} with {each['used']}"
        for each in listed
        if each["pid"] and int(each["pid"]) not in own_pids
    ]
    which = _processes(named, own_pids) or ", ".join(pids) or "not known"
    return Diagnosis(
        OUT_OF_MEMORY,
        f"{who}: out of GPU memory, {match['wanted']} were requested, and other processes have "
        f"{size_text(others)} of {match['total']} on GPU {_named(named) or index}: {which}.\n"
        f"The workers are started again after {RETRY_AFTER_S:g} s. End that process, or use another GPU.",
        retry_after_s=RETRY_AFTER_S,
    )


def _of_taken(
    who: str, match: re.Match[str], gpus: Sequence[GpuState], own_pids: Collection[int]
) -> Diagnosis:
    processes = _processes(gpus, own_pids)
    return Diagnosis(
        GPU,
        f"{who}: {match[0]}: GPU {_named(gpus) or 'of unknown number'}.\n"
        + (f"Other processes on it: {processes}.\n" if processes else "No other process is known on it.\n")
        + f"The workers are started again after {RETRY_AFTER_S:g} s. End other processes on it; in exclusive "
        "mode (nvidia-smi -q -d COMPUTE) a GPU takes one. If there is none, the GPU must be reset.",
        retry_after_s=RETRY_AFTER_S,
    )


def _of_hardware(who: str, message: str, host: str, gpus: Sequence[GpuState]) -> Diagnosis | None:
    if match := _BROKEN.search(message):
        return _of_broken(who, match, host, gpus)
    match = _NOT_READY.search(message)
    return _of_fabric(who, match, host) if match is not None else None


def _of_broken(who: str, match: re.Match[str], host: str, gpus: Sequence[GpuState]) -> Diagnosis:
    return Diagnosis(
        GPU,
        f"{who}: {match[0]}: a hardware error of GPU {_named(gpus) or 'of unknown number'}.\n"
        f"If it fails again, start the run without {host} (on SLURM slurm.options: [--exclude={host}]), and "
        "tell the administrators: the GPU may need a reset (nvidia-smi -q -d ECC,ROW_REMAPPER).",
        retry_after_s=0.0,  # the driver may have retired the broken memory when the process ended
        of_hardware=True,
    )


def _of_fabric(who: str, match: re.Match[str], host: str) -> Diagnosis:
    return Diagnosis(
        GPU,
        f"{who}: {match[0]} (CUDA error 802): {FABRIC}\n"
        f"If it fails again, start the run without {host} (on SLURM slurm.options: [--exclude={host}]).",
        retry_after_s=RETRY_AFTER_S,
        of_hardware=True,
    )


def _of_library(who: str, library: str, match: re.Match[str]) -> str:
    return out_of_memory_text(
        f"{who}: {library} could not allocate memory on the GPU ({match[0]}).\n"
        f"{library} allocates its buffers beside torch, which keeps the memory that it has taken.",
        ON_GPU,
    )


def _of_shm(who: str, match: re.Match[str]) -> Diagnosis:
    return Diagnosis(
        LIMIT,
        f"{who}: NCCL could not use /dev/shm ({match[0].strip()[:200]}).\n"
        "NCCL exchanges data between the GPUs of a node there, about 10 MiB for each pair.\n"
        "An unchanged run would fail again. Make /dev/shm larger: docker's --shm-size, or a pod's emptyDir "
        "(medium: Memory) with a larger sizeLimit. With env: {NCCL_SHM_DISABLE: '1'} NCCL uses the network.",
    )


def _named(gpus: Sequence[GpuState]) -> str:
    return ", ".join(str(state.gpu) for state in gpus)


def _processes(gpus: Sequence[GpuState], own_pids: Collection[int]) -> str:
    found = [each for state in gpus for each in state.processes if each.pid not in own_pids]
    return ", ".join(
        f"process {each.pid}" + (f" with {size_text(each.used_bytes)}" if each.used_bytes is not None else "")
        for each in found
    )


def _size(text: str) -> int:
    """The bytes of torch's "4.25 GiB"."""
    return size_bytes(text.replace(" ", "").replace("bytes", "").removesuffix("B"))
