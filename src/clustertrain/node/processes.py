"""Which process it was, so that anyone on the same machine can tell whether it still lives.

psutil identifies a process by pid and time of start: in another pid namespace these are another process's.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """What identifies a process: host (see `this_host`), pid, and its start in clock ticks since boot."""

    host: str
    pid: int
    pid_started_ticks: int

    @property
    def is_here(self) -> bool:
        """Whether it is, or was, a process of this host."""
        return self.host == this_host()

    @property
    def is_gone(self) -> bool:
        """Whether a process of this host ended. In doubt it lives: its heartbeat shows it in the end."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False  # another user's; where /proc hides those, nothing more can be known
        found = _state_and_ticks(self.pid)
        return found is not None and (found[0] in ("Z", "X") or found[1] != self.pid_started_ticks)


def this_process() -> Process:
    _, ticks = _state_and_ticks(os.getpid()) or ("", 0)
    return Process(this_host(), os.getpid(), ticks)


def this_host() -> str:
    """Where a pid means what it means here: the same boot of the same machine, in the same pid namespace.

    Host names alone will not do: on machines that are all called localhost, a live holder would look dead.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()}/{boot}/{Path('/proc/self/ns/pid').readlink()}"


def _state_and_ticks(pid: int) -> tuple[str, int] | None:
    """The state of a process and when it started: a pid that is used again has another start."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields[0], int(fields[19])
