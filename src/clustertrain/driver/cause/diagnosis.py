"""Determines the limit that ended a worker: pure functions over error texts and the limits of its node.

An unchanged run would reach the limit again, so such a failure is not followed by a restart. Each message
gives the limit, the place where it is set, and what to change in the job.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from clustertrain.node.limits import Limits
from clustertrain.node.memory_kill import kill_for_memory, out_of_memory_text
from clustertrain.units import size_text

OUT_OF_MEMORY, LIMIT = "out_of_memory", "limit"

ON_GPU = "use train.precision: bf16, or GPUs with more memory"
_RAYS_KILL = re.compile(r"killed due to the node running low on memory[^\n]*(?:\nOOM kill reason: [^\n]*)?")
_CUDA = re.compile(
    r"(?:CUDA|HIP) out of memory\. Tried to allocate (?P<wanted>[\d.]+ \w+)"
    r"(?:.*?GPU (?P<gpu>\d+) has a total capacity of (?P<total>[\d.]+ \w+) "
    r"of which (?P<free>[\d.]+ \w+) is free)?",
    re.DOTALL,
)
_CUDA_BARE = re.compile(r"CUDA error: out of memory|cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED")
_SHM = re.compile(
    r"unable to (?:allocate|open|resize)[^\n]*shared memory[^\n]*|"
    r"unable to write to file </torch_[^\n]*|"  # of a script with an older torch
    r"insufficient shared memory \(shm\)|out of shared memory\. Please|"
    r"[^\n]*/dev/shm[^\n]*No space left on device|No space left on device[^\n]*/dev/shm[^\n]*"
)
_FILES = re.compile(r"Too many open files(?P<all> in system)?|received 0 items of ancdata")
_HOST = re.compile(
    r"(?:^|\n)\w*MemoryError\b[^\n]*|DefaultCPUAllocator: can't allocate memory[^\n]*|std::bad_alloc|"
    r"Cannot allocate memory"
)
_CHILD_KILLED = re.compile(r"killed by signal: Killed")


@dataclass(frozen=True)
class Diagnosis:
    """`cause` is a cause of the state `failed`; `text` is the message, with two to four lines. Another start
    can help if `retry_after_s` is a number, after this time; on another node, if `of_hardware`."""

    cause: str
    text: str
    retry_after_s: float | None = None
    of_hardware: bool = False


def diagnose(
    who: str, message: str, *, tail: str = "", killed: bool = False, before: Limits, now: Limits | None
) -> Diagnosis | None:
    """The limit that a worker reached, or None if there is no evidence for one.

    Args:
        who: "rank 1 (pid 4711 on node7)".
        message: the exception as "Type: text"; for a dead process, Ray's error and its last output.
        tail: the end of the rank's log.
        killed: whether it died of SIGKILL, which every out-of-memory killer sends.
        before: the limits of its node when the workers started.
        now: the same after the failure, or None if unknown.
    """
    limits = _of_process(before, now)
    if match := _RAYS_KILL.search(message):
        return _of_rays_kill(who, match, limits)
    if killed or _CHILD_KILLED.search(message):
        text = kill_for_memory(who, before, now)
        return None if text is None else Diagnosis(OUT_OF_MEMORY, text)
    if match := _SHM.search(f"{message}\n{tail}"):  # a loader process writes it only to the log
        return _of_shm(who, match, limits)
    for pattern, of in _RULES.items():
        if match := pattern.search(message):
            return of(who, match, limits)
    return None


def _of_process(before: Limits, now: Limits | None) -> Limits:
    """The newest of both; the limits of the process from `before`, because another process may have read
    `now`."""
    if now is None:
        return before
    own = (before.open_files, before.open_files_most, before.address_space_bytes)
    return replace(now, open_files=own[0], open_files_most=own[1], address_space_bytes=own[2])


# ------------------------------------------------------------------------------------------------ memory


def _of_rays_kill(who: str, match: re.Match[str], limits: Limits) -> Diagnosis:
    capped = [g for g in limits.cgroups if g.limit_bytes]
    if capped:
        smallest = min(capped, key=lambda g: g.limit_bytes or 0)
        memory = f"{size_text(smallest.limit_bytes or 0)} ({smallest.limit_file} of {smallest.path})"
    else:
        memory = size_text(limits.memory_bytes) if limits.memory_bytes else "unknown"
    return _out_of_memory(
        f"{who} was {match[0].strip()}\n"
        "Ray kills workers before the node's memory is used up, at RAY_memory_usage_threshold; "
        f"memory: {memory}.",
        "use nodes with more memory",
    )


def _of_cuda(who: str, match: re.Match[str], limits: Limits) -> Diagnosis:
    if match.re is _CUDA_BARE:
        return _out_of_memory(f"{who}: {match[0]}. The memory of the GPU is unknown.", ON_GPU)
    has = (
        f"GPU {match['gpu']} has {match['total']} in all, of which {match['free']} were free."
        if match["gpu"] is not None
        else "The memory of the GPU is unknown."
    )
    return _out_of_memory(
        f"{who}: out of GPU memory, {match['wanted']} were requested. {has}",
        ON_GPU,
    )


def _of_host(who: str, match: re.Match[str], limits: Limits) -> Diagnosis:
    parts = []
    if limits.memory_bytes and limits.available_bytes is not None:
        parts.append(
            f"the machine has {size_text(limits.memory_bytes)}, {size_text(limits.available_bytes)} available"
        )
    for cgroup in limits.cgroups:
        if cgroup.limit_bytes is not None:
            parts.append(f"{cgroup.path} allows {size_text(cgroup.limit_bytes)} ({cgroup.limit_file})")
    if limits.address_space_bytes is not None:
        parts.append(f"RLIMIT_AS (ulimit -v) allows {size_text(limits.address_space_bytes)}")
    return _out_of_memory(
        f"{who}: {match[0].strip()}\nMemory: {'; '.join(parts) or 'unknown'}.",
        "allocate less at once, or request more memory",
    )


def _out_of_memory(what: str, remedy: str) -> Diagnosis:
    return Diagnosis(OUT_OF_MEMORY, out_of_memory_text(what, remedy))


# ---------------------------------------------------------------------------------------- other limits


def _of_shm(who: str, match: re.Match[str], limits: Limits) -> Diagnosis:
    size = "of unknown size"
    if limits.shm_bytes is not None and limits.shm_used_bytes is not None:
        size = f"{size_text(limits.shm_bytes)}, {size_text(limits.shm_used_bytes)} of it in use now"
    return Diagnosis(
        LIMIT,
        f"{who}: /dev/shm is too small for the tensors of its loader processes ({match[0].strip()}).\n"
        f"/dev/shm has {size}.\n"
        "An unchanged run would fail again. Set train.loader_workers: 0, or make /dev/shm larger: docker's "
        "--shm-size, or a pod's emptyDir (medium: Memory) with a larger sizeLimit.",
    )


def _of_files(who: str, match: re.Match[str], limits: Limits) -> Diagnosis:
    if match["all"]:
        return Diagnosis(
            LIMIT,
            f"{who}: too many open files on the whole machine (sysctl fs.file-max).\n"
            "An unchanged run would fail again. Close files in your code, or request a larger fs.file-max.",
        )
    return Diagnosis(
        LIMIT,
        f"{who}: too many open files; RLIMIT_NOFILE is {limits.open_files}, and may be raised to "
        f"{limits.open_files_most}.\n"
        "An unchanged run would fail again. Close files in your code, raise the limit (ulimit -n; docker's "
        "--ulimit nofile),\nor call torch.multiprocessing.set_sharing_strategy('file_system') if loader "
        "processes return many tensors.",
    )


_RULES: dict[re.Pattern[str], Callable[[str, re.Match[str], Limits], Diagnosis]] = {
    _CUDA: _of_cuda,
    _CUDA_BARE: _of_cuda,
    _FILES: _of_files,
    _HOST: _of_host,
}
