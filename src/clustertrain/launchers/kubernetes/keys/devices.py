"""Devices that a cluster names: those of Kubernetes' device plugins, and huge pages.

The API server checks names and amounts in the dry run of the pods; here is what it cannot know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, PlainSerializer

from clustertrain import units
from clustertrain.job.values import Count, Refused, Text, written_as
from clustertrain.launchers.gpu_slices import is_slice_of_gpu

HUGE_PAGES = "hugepages-"
_KEYS_OF_OWN = {
    "cpu": "resources.cpus_per_worker",
    "memory": "resources.memory_per_worker",
    "ephemeral-storage": "kubernetes.ephemeral_storage",
}


def _resource(name: str) -> str:
    if "/" not in name:
        raise ValueError("must be DOMAIN/NAME, as `kubectl describe nodes` lists it, such as nvidia.com/gpu")
    return name


def _amounts(value: object) -> object:
    """Amounts by name: a count, or bytes for huge pages."""
    if not isinstance(value, Mapping):
        return value
    return {str(name): _amount(str(name), amount) for name, amount in value.items()}


def _amount(name: str, amount: object) -> int:
    if name in _KEYS_OF_OWN:
        raise Refused(f"{name} has a key of its own\nset {_KEYS_OF_OWN[name]}", name)
    if name.endswith("gpu") or is_slice_of_gpu(name):
        raise Refused(
            f"{name} is a GPU\nset resources.gpus_per_worker, and kubernetes.gpu_resource: {name}", name
        )
    try:
        if name.startswith(HUGE_PAGES):
            return units.size_bytes(amount)
        _resource(name)
        return units.integer(amount)
    except ValueError as error:
        raise Refused(f"{amount!r} of {name}: {error}", name) from None


def _written(amounts: dict[str, int]) -> dict[str, str | int]:
    return {
        name: units.size_value(amount) if name.startswith(HUGE_PAGES) else amount
        for name, amount in amounts.items()
    }


ResourceName = Annotated[str, AfterValidator(_resource), written_as("name", "nvidia.com/gpu", "amd.com/gpu")]
NodeResources = Annotated[
    dict[str, int],
    BeforeValidator(_amounts, json_schema_input_type=dict[str, Count | Text]),
    PlainSerializer(_written, when_used="json"),
]
# What a training can need: to pin memory for RDMA, to bind memory to a NUMA node, to be read by a profiler.
Capability = Literal["IPC_LOCK", "SYS_NICE", "SYS_PTRACE"]
