"""Whether the host has memory for the copy of a state on GPUs that every save makes."""

from __future__ import annotations

from clustertrain.errors import ClusterError
from clustertrain.node.limits import Limits
from clustertrain.node.units import size_text


def check_host_memory(copy_bytes: int, ranks: int, limits: Limits) -> None:
    """Check it before the memory is reserved: the kernel would end a process without a word.

    Args:
        copy_bytes: of this rank's copy.
        ranks: of this node that make such a copy at the same time.

    Raises:
        ClusterError: the node, or a memory cgroup of this process, has less; with the arithmetic.
    """
    rooms = [
        (group.limit_bytes - group.used_bytes, f"{group.path} (limit {size_text(group.limit_bytes)})")
        for group in limits.cgroups
        if group.limit_bytes is not None and group.used_bytes is not None
    ]
    if limits.available_bytes is not None:
        rooms.append((limits.available_bytes, "the node"))
    needed_bytes = ranks * copy_bytes
    room_bytes, where = min(rooms, default=(needed_bytes, ""))
    if needed_bytes > room_bytes:
        sum_text = f"{ranks} × {size_text(copy_bytes)} = {size_text(needed_bytes)}"
        raise ClusterError(
            f"A save copies the state to host memory, here {sum_text}, and {where} has "
            f"{size_text(max(0, room_bytes))} free.\n"
            "Request more memory (resources.memory_per_worker), or divide the state among more workers."
        )
