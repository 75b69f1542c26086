"""The address by which the other nodes reach this one, and the interface that has it.

gloo takes the address of the host name, which on many machines is 127.0.1.1: ranks on other nodes then
connect to themselves ("connectFullMesh failed"). The route to the head gives the right address.
The standard library lists interfaces without their addresses, so an ioctl queries the kernel for those.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from contextlib import suppress

from clustertrain.errors import ClusterError

LOOPBACK = "127.0.0.1"
_SIOCGIFADDR = 0x8915
_ANY_PORT = 9  # connecting a datagram socket sends nothing: it looks up the route


def address_towards(other: str) -> str:
    """Return the IPv4 address from which this node reaches another one.

    Raises:
        ClusterError: there is no route, or the name is unknown here.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((other, _ANY_PORT))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ClusterError(
            f"{socket.gethostname()} has no route to {other}: {error.strerror or error}.\n"
            "The nodes of a job must reach each other by name or by SLURM's NodeAddr."
        ) from error


def interface_of(address: str) -> str | None:
    """Return the interface whose first IPv4 address is this one, or None."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with suppress(OSError):  # no IPv4 address
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return None


def interface_variables(address: str) -> dict[str, str]:
    """Return the variables with which Gloo and NCCL connect through the interface that has this address.

    There are none if no interface has it.

    With "=" NCCL takes the interface of exactly this name: without, eth1 is also eth10. If there is
    InfiniBand, it only exchanges addresses through the interface. Gloo knows only whole names.
    """
    name = interface_of(address)
    return {} if name is None else {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}"}


def is_listening(address: str, port: int, timeout_s: float = 1.0) -> bool:
    """Return whether a process listens on this port."""
    return _connecting(address, port, timeout_s) is None


def is_refused(address: str, port: int, timeout_s: float = 1.0) -> bool:
    """Return whether the machine refuses the connection because no process listens on this port.

    A lost packet is not a refusal.
    """
    return isinstance(_connecting(address, port, timeout_s), ConnectionRefusedError)


def _connecting(address: str, port: int, timeout_s: float) -> OSError | None:
    """Connect, and return the error, or None if it succeeded."""
    try:
        with socket.create_connection((address, port), timeout_s):
            return None
    except OSError as error:
        return error
