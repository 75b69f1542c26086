"""A block of free ports for one job on one node.

Ray's default ports are fixed, so two jobs on one node would collide. A block lies below the kernel's
ephemeral range: a client of any program could otherwise get a port of the block at any time. Binding port 0
is not an alternative, since it gives single ports of the ephemeral range.
"""

from __future__ import annotations

import contextlib
import errno
import math
import socket
from dataclasses import dataclass
from pathlib import Path

from clustertrain.errors import ClusterError

_FIRST, _ALIGNED = 10_000, 100
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_MIDDLE = 32_768  # the first ephemeral port of Linux by default
_NO_SUCH_FAMILY = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # a kernel without IPv6


@dataclass(frozen=True)
class Ports:
    """The ports from `first` to `last`, both included."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"

    @classmethod
    def parse(cls, text: str) -> Ports:
        """Parse the text of `str`: "10000-10099"."""
        first, _, last = text.partition("-")
        return cls(int(first), int(last))


def free_block(count: int, *, seed: int, taken: range = range(0)) -> Ports:
    """Return `count` consecutive ports on which no process of this node listens, at any address.

    Args:
        seed: determines where the search begins, so that two jobs that search at the same time find different
            blocks.
        taken: ports that are given to others, who do not listen yet.

    Raises:
        ClusterError: there is no such block.
    """
    end = _first_ephemeral()
    starts = list(range(_FIRST, end - count, _ALIGNED))
    begin = seed * math.ceil(count / _ALIGNED)  # the next seed begins behind this block
    for i in range(len(starts)):
        first = starts[(begin + i) % len(starts)]
        if all(port not in taken and _is_free(port) for port in range(first, first + count)):
            return Ports(first, first + count - 1)
    raise ClusterError(
        f"No {count} free ports in a row on {socket.gethostname()} from {_FIRST} to {end - 1}.\n"
        f"The kernel gives ports from {end} on to clients ({EPHEMERAL}). Free some, or use another node."
    )


def free_port(block: Ports) -> int:
    """Return a port of the block on which no process listens.

    Raises:
        ClusterError: all are taken.
    """
    for port in range(block.last, block.first - 1, -1):
        if _is_free(port):
            return port
    raise ClusterError(f"All ports {block} of this job on {socket.gethostname()} are taken.")


def _first_ephemeral() -> int:
    """Return the first ephemeral port; Linux's default if the configured one leaves no room for a block."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        first = int(EPHEMERAL.read_text().split()[0])
        if first > _FIRST + 2_000:
            return first
    return _MIDDLE


def _is_free(port: int) -> bool:
    return all(_can_bind(family, port) for family in (socket.AF_INET, socket.AF_INET6))


def _can_bind(family: socket.AddressFamily, port: int) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(("", port))
    except OSError as error:
        return error.errno in _NO_SUCH_FAMILY
    return True
