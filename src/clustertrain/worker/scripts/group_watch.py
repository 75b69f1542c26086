"""Whether a script has made its process group; a rank that has not, while others wait, is named.

torch's rendezvous through MASTER_ADDR and MASTER_PORT is a TCP connection of each rank to rank 0, which
listens there (torch.distributed.TCPStore). A rank that never calls init_process_group keeps the others
waiting until torch's timeout, 30 minutes with gloo, and their error then names no rank.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from clustertrain.waiting import wait_until

_POLL_S = 0.5
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")  # Documentation/networking/proc_net_tcp.rst of Linux
_NO_PROCESS = "0"  # the inode of a connection whose process has closed it
# The answer in place of a rank 0 that has ended, to a caller that sends nothing: the watch of another rank.
_HAS_ENDED = b"clustertrain: rank 0 has ended\n"


@dataclass(kw_only=True)
class GroupWatch:
    """Watches one process of a script and its children, in a thread. Both texts are warnings: a script may
    leave ranks out on purpose.

    Attributes:
        note: writes an event of a kind, with a text.
        patience_s: how long a rank may take to join while others wait, and how long they are looked for after
            its end.
    """

    rank: int
    world_size: int
    address: str
    port: int
    note: Callable[[str, str], None]
    patience_s: float = 60.0

    def __post_init__(self) -> None:
        self._name, self._pid, self._began_s = "", 0, 0.0
        self._ended = threading.Event()
        self._code: int | None = None

    def start(self, name: str, pid: int) -> None:
        """`pid`: of the script's process, which leads a session."""
        self._name, self._pid, self._began_s = name, pid, time.monotonic()
        if self.world_size > 1:
            threading.Thread(target=self._watch, daemon=True).start()

    def ended(self, code: int | None) -> None:
        """The script has ended by itself; None: after a stop request."""
        self._code = code
        self._ended.set()

    def _watch(self) -> None:
        has_warned = False
        while not self._ended.wait(_POLL_S):
            if self._has_joined():
                return
            waited_s = time.monotonic() - self._began_s
            if not has_warned and waited_s > self.patience_s and self.rank > 0 and self._is_awaited():
                has_warned = True
                self._warn(f"has made no process group for {waited_s:.0f} s. Rank 0 waits for it")
        if self._code == 0 and not has_warned and not _closed_connections(self.port):
            self._look_for_waiting_ranks()

    def _look_for_waiting_ranks(self) -> None:
        what = "ended with exit code 0 and made no process group."
        if self.rank == 0:
            if (host := self._caller()) is not None:
                self._warn(f"{what} A rank on {host} waits for it")
        elif wait_until(self._is_awaited, self.patience_s, _POLL_S):
            self._warn(f"{what} Rank 0 waits for it")

    def _warn(self, what: str) -> None:
        self.note(
            "warning",
            f"rank {self.rank}: {self._name} {what} at {self.address}:{self.port}, until the timeout of "
            "its init_process_group.\n"
            "Every rank must call init_process_group: look for a condition on the rank or an exit before it.",
        )

    def _is_awaited(self) -> bool:
        """Whether rank 0 listens, and not its watch in its place."""
        with suppress(OSError), socket.create_connection((self.address, self.port), timeout=5) as caller:
            caller.shutdown(socket.SHUT_WR)  # torch's store closes such a connection without an answer
            return caller.recv(len(_HAS_ENDED)) != _HAS_ENDED
        return False

    def _caller(self) -> str | None:
        """The host of a rank that tries to reach this one, rank 0, in whose place this process listens."""
        ends = time.monotonic() + self.patience_s
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        with suppress(OSError), socket.create_server(("", self.port), family=family) as server:
            while (left_s := ends - time.monotonic()) > 0:
                server.settimeout(left_s)
                connection, (host, *_) = server.accept()
                with suppress(OSError), connection:
                    connection.settimeout(5)
                    if connection.recv(1):
                        return str(host)
                    connection.sendall(_HAS_ENDED)
        return None

    def _has_joined(self) -> bool:
        inodes = set(_sockets(self.port)) - {_NO_PROCESS}
        return bool(inodes) and any(_has_socket(pid, inodes) for pid in _session(self._pid))


def _sockets(port: int) -> Iterator[str]:
    """The inode of each TCP socket of this machine that has the port, on this side or the other."""
    wanted = f":{port:04X}"
    for table in _TABLES:
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[1].endswith(wanted) or fields[2].endswith(wanted):
                    yield fields[9]


def _closed_connections(port: int) -> bool:
    """Whether a process of this machine had such a connection until a moment ago."""
    return _NO_PROCESS in _sockets(port)


def _session(leader: int) -> Iterator[int]:
    """The processes of a session."""
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit() and os.getsid(int(folder.name)) == leader:
                yield int(folder.name)


def _has_socket(pid: int, inodes: set[str]) -> bool:
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                link = str(descriptor.readlink())
                if link.startswith("socket:[") and link[8:-1] in inodes:
                    return True
    return False
