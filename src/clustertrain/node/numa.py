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
    nodes = {
        _node_number(root / "sys/bus/pci/devices" / address.lower()[-12:] / "numa_node")
        for address in addresses
    }
    of_machine = list((root / "sys/devices/system/node").glob("node[0-9]*"))
    if len(nodes) != 1 or len(of_machine) < 2 or (number := nodes.pop()) is None:
        return None
    try:
        text = (root / f"sys/devices/system/node/node{number}/cpulist").read_text()
    except OSError:
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


def _node_number(file: Path) -> int | None:
    """Return the number of the node, or None if the kernel does not know it, which it writes as -1."""
    try:
        number = int(file.read_text())
    except (OSError, ValueError):
        return None
    return number if number >= 0 else None


def _cpu_numbers(text: str) -> list[int]:
    """Return the CPUs in a list of the kernel such as "0-3,8-11"."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers
