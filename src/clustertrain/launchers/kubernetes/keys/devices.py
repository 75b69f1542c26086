"""Devices that a cluster names: those of Kubernetes' device plugins, and huge pages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, PlainSerializer

from clustertrain import units
from clustertrain.job.values import Count, Refused, Text, written_as
from clustertrain.launchers.gpu_slices import is_slice_of_gpu

HUGE_PAGES = "hugepages-"
_MOST_AMOUNT = 2**63 - 1  # of a quantity in Kubernetes
_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_KEYS_OF_OWN = {
    "cpu": "resources.cpus_per_worker",
    "memory": "resources.memory_per_worker",
    "ephemeral-storage": "kubernetes.ephemeral_storage",
}


def _resource(name: str) -> str:
    domain, slash, rest = name.partition("/")
    if not slash or not _DOMAIN.fullmatch(domain) or not _NAME.fullmatch(rest):
        raise ValueError("must be DOMAIN/NAME, as `kubectl describe nodes` lists it, such as nvidia.com/gpu")
    if f".{domain}".endswith(".kubernetes.io"):
        raise ValueError("must have another domain: kubernetes.io is for Kubernetes' own resources")
    return name


def _amounts(value: object) -> object:
    """Amounts by name: a count, or bytes for huge pages."""
    if not isinstance(value, Mapping):
        return value
    return {str(name): _amount(str(name), amount) for name, amount in value.items()}


def _amount(name: str, amount: object) -> int:
    if name in _KEYS_OF_OWN:
        raise Refused(f"{name} has a key of its own\nset {_KEYS_OF_OWN[name]}", name)
    try:
        if name.startswith(HUGE_PAGES):
            return _huge_pages(name, amount)
        _resource(name)
        count = units.integer(amount)
    except ValueError as error:
        raise Refused(f"{amount!r} of {name}: {error}", name) from None
    if name.endswith("gpu") or is_slice_of_gpu(name):
        raise Refused(
            f"{name} is a GPU\nset resources.gpus_per_worker, and kubernetes.gpu_resource: {name}", name
        )
    if not 1 <= count <= _MOST_AMOUNT:
        raise Refused(f"{count} of {name}\nmust be at least 1: leave out what the pods do not need", name)
    return count


def _huge_pages(name: str, amount: object) -> int:
    """Bytes of huge pages. `hugepages-2Mi` names the size of a page."""
    try:
        page = units.size_bytes(name.removeprefix(HUGE_PAGES))
    except ValueError:
        raise ValueError("must name the size of a page, such as hugepages-2Mi or hugepages-1Gi") from None
    size = units.size_bytes(amount)
    if page < 1 or size < 1 or size % page:
        multiple = f": {size:,} / {page:,} = {size / page:.6g}" if page else ""
        raise ValueError(f"must be a multiple of the size of a page{multiple}")
    return size


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
