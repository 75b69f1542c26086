"""What the texts of an error do not say about a GPU: which it is, and which other processes are on it."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from clustertrain.node.gpus import GpuState
from clustertrain.node.units import size_bytes, size_text
from clustertrain.observe.explain.first_cause import FoundError

_OUT_OF_MEMORY = re.compile(
    r"(?:CUDA|HIP) out of memory\. Tried to allocate (?P<wanted>[\d.]+ \w+)\. GPU (?P<index>\d+) has a total "
    r"capacity of (?P<total>[\d.]+ \w+) of which (?P<free>[\d.]+ \w+) is free\.(?P<processes>[^\n]*)"
)
_IN_USE = re.compile(r"(?:Process (?P<pid>\d+)|(?P<own>this process)) has (?P<used>[\d.]+ \w+) memory in use")


@dataclass(frozen=True)
class Gpus:
    """The GPUs of a worker after its failure, empty if nothing is known of them.

    With them are the processes of the run's workers on their node, and its name.
    """

    states: Sequence[GpuState] = ()
    own_pids: Collection[int] = ()
    host: str = "NODE"

    def __str__(self) -> str:
        return ", ".join(str(state.gpu) for state in self.states)

    @property
    def processes(self) -> str:
        """The processes of others on these GPUs, with their memory."""
        found = [each for state in self.states for each in state.processes if each.pid not in self.own_pids]
        return ", ".join(
            f"process {each.pid}"
            + (f" with {size_text(each.used_bytes)}" if each.used_bytes is not None else "")
            for each in found
        )


def of_gpu(hit: FoundError, gpus: Gpus) -> str:
    """Return the text of an error of a GPU, with the GPU and, if others may have it, their processes."""
    named = f"GPU {gpus}" if gpus.states else "GPU of unknown number"
    if hit.entry.name == "gpu_fabric":
        return f"{hit.line} (CUDA error 802): {hit.entry.cause}"
    if hit.entry.name != "gpu_busy":
        return f"{hit.line}: a hardware error of {named}."
    others = (
        f"Other processes on it: {gpus.processes}." if gpus.processes else "No other process is known on it."
    )
    return f"{hit.line}: {named}.\n{others}"


def others_memory(message: str, gpus: Gpus) -> str | None:
    """Return how much GPU memory other processes have; None if it is not much, or unknown.

    The message of torch has the memory of each process that it can see.
    """
    if (match := _OUT_OF_MEMORY.search(message)) is None:
        return None
    total, free = _size(match["total"]), _size(match["free"])
    listed = list(_IN_USE.finditer(match["processes"]))
    if not any(each["own"] for each in listed):  # torch sees no processes, as in a container
        return None
    own = sum(_size(each["used"]) for each in listed if each["own"] or int(each["pid"]) in gpus.own_pids)
    others = total - free - own
    if others <= max(total // 20, 1 << 30):
        return None
    index = int(match["index"])
    this = Gpus(gpus.states[index : index + 1], gpus.own_pids)
    return (
        f"out of GPU memory, {match['wanted']} were requested, and other processes have "
        f"{size_text(others)} of {match['total']} on GPU {str(this) or index}: "
        f"{this.processes or 'not known'}."
    )


def _size(text: str) -> int:
    """Return the bytes of torch's "4.25 GiB"."""
    return size_bytes(text.replace(" ", "").replace("bytes", "").removesuffix("B"))
