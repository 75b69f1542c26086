"""Requests and limits of the containers: CPU and memory for every one, since a quota may require them.

head               kubernetes.head
worker's pod       resources, for all workers of the pod, and 1Gi for Ray; limits equal requests
code               those of the pod's main container, without GPUs: it runs before that one
submitter, reader  kubernetes.submitter
"""

from __future__ import annotations

from typing import Any

from clustertrain.job.model import Job
from clustertrain.job.pods import Head, Submitter

_RAY_BYTES = 2**30  # for Ray's own processes, in addition to the workers of a pod
_WORKER_BYTES, _GPU_BYTES = 4 * 2**30, 16 * 2**30  # without resources.memory_per_worker
_OTHER_DISK_BYTES = 2**30
_BURST = 4  # the default CPU limit, in requests
_GPU = "nvidia.com/gpu"

Amounts = dict[str, Any]


def workers_per_pod(job: Job) -> int:
    """All workers of a node if the job has `nodes`: one pod per node. Else 1: one pod per worker."""
    return 1 if job.resources.nodes is None else job.resources.workers_per_node


def head_amounts(job: Job) -> Amounts:
    return _bursting(job.kubernetes.head, job.kubernetes.ephemeral_storage_bytes)


def small_amounts(job: Job) -> Amounts:
    """Those of submitter and reader."""
    disk = job.kubernetes.ephemeral_storage_bytes
    return _bursting(job.kubernetes.submitter, None if disk is None else min(disk, _OTHER_DISK_BYTES))


def worker_amounts(job: Job) -> Amounts:
    resources, count = job.resources, workers_per_pod(job)
    each = resources.memory_per_worker_bytes or _GPU_BYTES * resources.gpus_per_worker or _WORKER_BYTES
    amounts = {
        "cpu": _cpus(resources.cpus_per_worker * count),
        "memory": memory_text(each * count + _RAY_BYTES),
        **_disk(job.kubernetes.ephemeral_storage_bytes),
    }
    if gpus := resources.gpus_per_worker * count:
        amounts[_GPU] = str(gpus)
    return {"requests": amounts, "limits": dict(amounts)}


def without_gpus(amounts: Amounts) -> Amounts:
    return {kind: {key: each[key] for key in each if key != _GPU} for kind, each in amounts.items()}


def _bursting(section: Head | Submitter, disk_bytes: int | None) -> Amounts:
    rest = {"memory": memory_text(section.memory_bytes), **_disk(disk_bytes)}
    limit = section.cpu_limit or max(_BURST * section.cpus, 1.0)
    return {
        "requests": {"cpu": _cpus(section.cpus), **rest},
        "limits": {"cpu": _cpus(max(limit, section.cpus)), **rest},
    }


def _disk(size_bytes: int | None) -> dict[str, str]:
    return {} if size_bytes is None else {"ephemeral-storage": memory_text(size_bytes)}


def memory_text(size_bytes: int) -> str:
    """A size in bytes as a quantity of Kubernetes."""
    for unit, bytes_each in (("Gi", 2**30), ("Mi", 2**20)):
        if size_bytes % bytes_each == 0:
            return f"{size_bytes // bytes_each}{unit}"
    return str(size_bytes)


def _cpus(cores: float) -> str:
    return f"{cores:g}" if cores == int(cores) else f"{round(cores * 1000)}m"
