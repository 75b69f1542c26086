"""Where a worker with GPUs runs, and how torch gets memory from them: set before CUDA is used."""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import ceil

from clustertrain.job.model import Job
from clustertrain.node.gpus import visible_gpus
from clustertrain.node.numa import bind_process, numa_node_of

_ALLOCATOR = "PYTORCH_ALLOC_CONF"
_ALLOCATOR_NAMES = (_ALLOCATOR, "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
_EXPANDABLE = "expandable_segments:True"  # segments of memory grow: tensors of other sizes leave no gaps


def place_worker(job: Job, gpus: Sequence[int]) -> None:
    """Set the allocator of torch and the CPUs of this process and its children.

    The rank's log gets a line about the CPUs. `gpus`: as in worker/place.py.
    """
    use_expandable_segments(in_this_process=not job.is_script)
    if job.resources.bind_cpus:
        line = bind_to_gpus(*_addresses(gpus), job.resources.cpus_per_worker)
        print(f"clustertrain: {line}", flush=True)


def _addresses(gpus: Sequence[int]) -> tuple[list[str], list[str]]:
    """Return the PCI addresses of this worker's GPUs, and of the GPUs of all workers of the node.

    Each worker sees the GPUs of all. Both are empty if NVML does not answer. This creates no CUDA context.
    """
    of_node = [gpu.pci for gpu in visible_gpus()]
    return ([of_node[index] for index in gpus] if max(gpus) < len(of_node) else []), of_node


def bind_to_gpus(addresses: Sequence[str], of_node: Sequence[str], cpus_per_worker: float) -> str:
    """Bind this process to the CPUs of the NUMA node of the GPUs at these addresses.

    Return a line for the log. The process is bound only if it may use at least `cpus_per_worker` of these
    CPUs for each worker with GPUs there.

    Args:
        of_node: the addresses of the GPUs of all workers of this machine.
    """
    allowed = os.sched_getaffinity(0)
    node = numa_node_of(addresses, allowed)
    if node is None:
        return "not bound to CPUs: the GPUs are not on one of several NUMA nodes"
    gpus = ", ".join(addresses)
    there = sum(numa_node_of([each], allowed) == node for each in of_node)
    workers = ceil(there / len(addresses))
    if len(node.cpus) < ceil(workers * cpus_per_worker):
        return (
            f"not bound to CPUs: {len(node.cpus)} of the {len(allowed)} CPUs of this worker are on NUMA node "
            f"{node.number}, that of GPU {gpus}, and {workers} workers with GPUs there × cpus_per_worker "
            f"{cpus_per_worker:g} = {workers * cpus_per_worker:g}"
        )
    bind_process(node.cpus)
    return f"bound to {len(node.cpus)} CPUs of NUMA node {node.number}, that of GPU {gpus}"


def use_expandable_segments(*, in_this_process: bool) -> None:
    """Use expandable segments, unless the environment configures torch's allocator."""
    if any(os.environ.get(name) for name in _ALLOCATOR_NAMES):
        return
    os.environ[_ALLOCATOR] = _EXPANDABLE
    if in_this_process:  # torch read the variable when it was imported
        import torch

        torch._C._accelerator_setAllocatorSettings(_EXPANDABLE)
