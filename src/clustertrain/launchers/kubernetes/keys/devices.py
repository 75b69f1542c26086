"""Devices that a cluster names: those of Kubernetes' device plugins, and huge pages.

The API server checks names and amounts in the dry run of the pods; here is what it cannot know.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator

from clustertrain.job.values import Argument, written_as
from clustertrain.launchers.gpu_slices import is_slice_of_gpu

_KEYS_OF_OWN = {
    "cpu": "resources.cpus_per_worker",
    "memory": "resources.memory_per_worker",
    "ephemeral-storage": "kubernetes.ephemeral_storage",
}


def _resource(name: str) -> str:
    if "/" not in name and not name.startswith("hugepages-"):
        raise ValueError("must be DOMAIN/NAME, as `kubectl describe nodes` lists it, such as nvidia.com/gpu")
    return name


def _device(name: str) -> str:
    """Return the name of a resource, or raise ValueError if another key requests that resource."""
    if name in _KEYS_OF_OWN:
        raise ValueError(f"must be a resource without a key of its own\nset {_KEYS_OF_OWN[name]}")
    if name.endswith("gpu") or is_slice_of_gpu(name):
        raise ValueError(
            f"must be no GPU\nset resources.gpus_per_worker, and kubernetes.gpu_resource: {name}"
        )
    return _resource(name)


ResourceName = Annotated[str, AfterValidator(_resource), written_as("name", "nvidia.com/gpu", "amd.com/gpu")]
NodeResources = dict[Annotated[str, AfterValidator(_device)], Argument]
# What a training can need: to pin memory for RDMA, to bind memory to a NUMA node, to be read by a profiler.
Capability = Literal["IPC_LOCK", "SYS_NICE", "SYS_PTRACE"]
