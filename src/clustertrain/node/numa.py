"""The CPUs next to a GPU, in its NUMA node; the memory of other CPUs is further away from the GPU."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class NumaNode:
    """One NUMA node of this machine, and its CPUs that this process may use."""

    number: int
    cpus: frozenset[int]


def numa_node_of(
    addresses: Collection[str], allowed_cpus: Collection[int], root: Path = Path("/")
) -> NumaNode | None:
    """Return the NUMA node of the devices at these PCI addresses, such as "00000000:1B:00.0".

    None if the devices are on several nodes, the machine has only one, or the node is unknown.
    """
    devices = [root / "sys/bus/pci/devices" / address.lower()[-12:] for address in addresses]
    folder = root / "sys/devices/system/node"
    try:
        nodes = {int((device / "numa_node").read_text()) for device in devices}
        if len(nodes) != 1 or len([*folder.glob("node[0-9]*")]) < 2:
            return None
        number = nodes.pop()
        text = (folder / f"node{number}/cpulist").read_text()
    except (OSError, ValueError):  # the kernel does not know the node, which it writes as -1
        return None
    return NumaNode(number, frozenset(_cpu_numbers(text)) & frozenset(allowed_cpus))


def bind_process(cpus: Collection[int]) -> None:
    """Let all threads of this process run on these CPUs only; later threads and child processes inherit it.

    Raises:
        OSError: the kernel refuses.
    """
    for thread in Path("/proc/self/task").iterdir():
        try:
            os.sched_setaffinity(int(thread.name), cpus)
        except ProcessLookupError:
            continue  # it has ended


def _cpu_numbers(text: str) -> list[int]:
    """Return the CPUs in a list of the kernel such as "0-3,8-11"."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers
