"""Requests and limits of the containers: CPU and memory for every one, since a quota may require them.

head               kubernetes.head
worker's pod       resources, for all workers of the pod, and 1Gi for Ray; limits equal requests, as devices
                   and huge pages require
disk               kubernetes.ephemeral_storage; without it a request alone, and only emptyDirs have limits
code               those of the pod's main container, without devices: it runs before that one
submitter, reader  kubernetes.submitter
"""

from __future__ import annotations

import math
from typing import Any

from clustertrain.errors import JobError
from clustertrain.job.sections import Resources
from clustertrain.launchers.gpu_slices import check_slices, is_slice_of_gpu
from clustertrain.launchers.kubernetes.pod_sections import HeadPod, Submitter
from clustertrain.launchers.kubernetes.render.paths import PodJob
from clustertrain.launchers.kubernetes.section import Kubernetes
from clustertrain.node.units import size_value

_RAY_BYTES = 2**30  # for Ray's own processes, in addition to the workers of a pod
_WORKER_BYTES, _GPU_BYTES = 4 * 2**30, 16 * 2**30  # without resources.memory_per_worker
_DISK_BYTES, _MOST_DISK_BYTES = 2**30, 100 * 2**30  # a request and an emptyDir, without ephemeral_storage
_OTHER_DISK_BYTES = 2**30  # at most, of submitter and reader
_BURST = 4  # the default CPU limit, in requests
_WITHOUT_DEVICES = ("cpu", "memory", "ephemeral-storage")

Amounts = dict[str, Any]


def workers_per_pod(run: PodJob) -> int:
    """Return the number of workers in a pod.

    It is all workers of a node if the job has `nodes`: one pod per node. Else it is 1: one pod per worker.
    """
    return 1 if run.job.resources.nodes is None else run.job.resources.workers_per_node


def gpus_per_pod(run: PodJob) -> int:
    return workers_per_pod(run) * run.job.resources.gpus_per_worker


def with_nodes(shape: Resources, section: Kubernetes) -> Resources:
    """Return the resources of a job with `nodes`, if its workers with GPUs need it.

    They share the pod of their node, because GPUs of separate pods exchange gradients without NVLink. Slices
    of GPUs have no NVLink.

    Raises:
        JobError: the number of nodes does not follow from the job and its site.
    """
    has_gpus = shape.gpus_per_worker > 0 and not is_slice_of_gpu(section.gpu_resource)
    if shape.nodes is not None or not has_gpus or shape.max_workers == 1:
        return shape
    room = (section.gpus_per_node or 0) // shape.gpus_per_worker
    common = math.gcd(shape.min_workers, shape.max_workers)
    per_node = max((count for count in range(1, room + 1) if common % count == 0), default=None)
    if per_node is None:
        raise JobError(
            f"resources.nodes is missing, for {shape.max_workers} workers with {shape.gpus_per_worker} GPUs "
            f"each; kubernetes.gpus_per_node is {section.gpus_per_node or 'not set'}.\n"
            "The workers of a node share one pod: GPUs of separate pods exchange gradients without NVLink.\n"
            "Set resources.nodes, or kubernetes.gpus_per_node in the site file.",
            at=("resources", "workers"),
        )
    least, most = shape.min_workers // per_node, shape.max_workers // per_node
    nodes = most if least == most else (least, most)
    return shape.model_copy(update={"nodes": nodes})


def head_amounts(run: PodJob) -> Amounts:
    return _bursting(run, run.section.head, run.section.ephemeral_storage_bytes)


def small_amounts(run: PodJob) -> Amounts:
    """Return the amounts of the submitter and the reader."""
    disk = run.section.ephemeral_storage_bytes
    return _bursting(run, run.section.submitter, None if disk is None else min(disk, _OTHER_DISK_BYTES))


def worker_amounts(run: PodJob) -> Amounts:
    """Return the amounts of a worker's pod.

    Raises:
        JobError: several workers of a pod would use slices of a GPU.
    """
    resources, count = run.job.resources, workers_per_pod(run)
    each = resources.memory_per_worker_bytes or _GPU_BYTES * resources.gpus_per_worker or _WORKER_BYTES
    amounts = {
        "cpu": _cpus(resources.cpus_per_worker * count),
        "memory": size_value(each * count + _RAY_BYTES),
    }
    if gpus := gpus_per_pod(run):
        gpu = run.section.gpu_resource
        check_slices(("kubernetes", "gpu_resource"), gpu, count, resources.gpus_per_worker, "pod")
        amounts[gpu] = str(gpus)
    amounts |= run.section.worker_resources
    return _with_disk(run, amounts, amounts, run.section.ephemeral_storage_bytes)


def disk_limit(run: PodJob, *, small: bool = False) -> str | int:
    """Return the size of an emptyDir on the node's disk; `small`: for the submitter and the reader."""
    most = run.section.ephemeral_storage_bytes or _MOST_DISK_BYTES
    return size_value(min(most, _OTHER_DISK_BYTES) if small else most)


def without_devices(amounts: Amounts) -> Amounts:
    return {
        kind: {key: each[key] for key in each if key in _WITHOUT_DEVICES} for kind, each in amounts.items()
    }


def _bursting(run: PodJob, section: HeadPod | Submitter, disk_bytes: int | None) -> Amounts:
    memory = {"memory": size_value(section.memory_bytes)}
    limit = max(section.cpu_limit or max(_BURST * section.cpus, 1.0), section.cpus)
    return _with_disk(
        run, {"cpu": _cpus(section.cpus), **memory}, {"cpu": _cpus(limit), **memory}, disk_bytes
    )


def _with_disk(run: PodJob, requests: Amounts, limits: Amounts, disk_bytes: int | None) -> Amounts:
    queue = run.section.queue
    # Kueue never admits a request for a resource that its queue does not count.
    least = None if queue is not None and queue.kind == "kueue" else _DISK_BYTES

    def disk(size_bytes: int | None) -> Amounts:
        return {} if size_bytes is None else {"ephemeral-storage": size_value(size_bytes)}

    return {"requests": requests | disk(disk_bytes or least), "limits": limits | disk(disk_bytes)}


def _cpus(cores: float) -> str:
    return f"{cores:g}" if cores == int(cores) else f"{round(cores * 1000)}m"
