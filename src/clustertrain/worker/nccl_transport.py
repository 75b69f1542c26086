"""Which network NCCL chose, and how it connects the GPUs of a node: from its lines of NCCL_DEBUG=INFO.

NCCL has no function that returns this. Its lines go to a file of the rank in the run's folder. The formats
are those of NCCL 2.29 (src/init.cc, src/transport/); a line of another format is ignored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

INFINIBAND = Path("/sys/class/infiniband")
_DEBUG = "NCCL_DEBUG"
_SETTINGS = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}
_FILE = "NCCL_DEBUG_FILE"

_NETWORK = re.compile(r"NCCL INFO Using network (.+)$", re.MULTILINE)
_DEVICES = re.compile(r"NCCL INFO NET/(\w+) : Using((?: \[\d+\]\S+)+)", re.MULTILINE)
_DEVICE = re.compile(r"\[\d+\](\S+)")
_PEER = re.compile(r"NCCL INFO Channel \d+(?:/\d+)? : .* via (P2P|SHM)/(\S+)", re.MULTILINE)
_REMOTE = re.compile(r"NCCL INFO Channel \d+/\d+ : .*\] via NET/.+/\d+(?:\(\d+\))?(/GDRDMA)?", re.MULTILINE)


@dataclass(frozen=True)
class Transport:
    """What NCCL chose on one node.

    Attributes:
        network: its name for the network: IB, Socket, or that of a plugin, such as AWS Libfabric.
        devices: of that network, as NCCL writes them: mlx5_0:1/RoCE, or eth0:10.0.0.4<0>.
        within: how it connects GPUs of the node: P2P/CUMEM, SHM/direct/direct.
        reaches_others: whether a rank of the node is connected to another node.
        gpu_direct: whether the network reads and writes the memory of the GPUs itself.
    """

    network: str
    devices: tuple[str, ...]
    within: tuple[str, ...]
    reaches_others: bool
    gpu_direct: bool

    def text(self, host: str) -> str:
        devices = f" ({', '.join(self.devices)})" if self.devices else ""
        direct = ", GPUDirect RDMA" if self.gpu_direct else ""
        inside = f"; {', '.join(self.within)} between the GPUs of the node" if self.within else ""
        return f"NCCL on {host}: network {self.network}{devices}{direct}{inside}"

    def problem(self, host: str) -> str | None:
        """Return a warning if it uses TCP between nodes although this node has a faster network."""
        unused = infiniband_devices()
        if self.network != "Socket" or not self.reaches_others or not unused:
            return None
        return (
            f"NCCL on {host} uses TCP between nodes, although the node has {', '.join(unused)} in "
            f"{INFINIBAND}.\nThe image or the node needs libibverbs1 and ibverbs-providers (for EFA the "
            "aws-ofi-nccl plugin), and the container /dev/infiniband."
        )


def infiniband_devices() -> list[str]:
    """Return the devices of InfiniBand, RoCE and EFA of this node."""
    return sorted(device.name for device in INFINIBAND.glob("*"))


def write_lines_to(path: Path) -> bool:
    """Set NCCL's variables so that it writes the lines to this file, before its first use in the process.

    Return False if the user has set variables for its output: they stay as they are.
    """
    if any(name.startswith(_DEBUG) for name in os.environ):
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    os.environ.update(_SETTINGS | {_FILE: str(path).replace("%", "%%")})
    return True


def forget_settings() -> None:
    """Remove the variables of `write_lines_to`, which NCCL has read: child processes do not need them."""
    for name in (*_SETTINGS, _FILE):
        os.environ.pop(name, None)


def transport_of(texts: Iterable[str]) -> Transport | None:
    """Return the transport of a node, from the lines of its ranks, or None if they do not contain it."""
    text = "\n".join(texts)
    networks = _NETWORK.findall(text)
    if not networks:
        return None
    network = networks[-1].strip()
    lines = [line for of, line in _DEVICES.findall(text) if of == network]
    devices = dict.fromkeys(device for line in lines for device in _DEVICE.findall(line))
    within = sorted({f"{kind}/{how}" for kind, how in _PEER.findall(text)})
    remote = _REMOTE.findall(text)
    return Transport(network, tuple(devices), tuple(within), bool(remote), any(remote))
