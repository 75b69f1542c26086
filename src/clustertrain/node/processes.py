"""The identity of a process, by which any process of the same machine can check whether it still runs.

psutil identifies a process by pid and start time; in another pid namespace, another process may
have the same ones.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_ENDED = ("Z", "X")


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
        """Whether a process of this host has ended. False in doubt: its heartbeat then stops."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False  # another user's process, which /proc may hide
        found = _state_and_ticks(self.pid)
        return found is not None and (found[0] in _ENDED or found[1] != self.pid_started_ticks)


def this_process() -> Process:
    """Return the identity of this process."""
    return process_of(os.getpid()) or Process(this_host(), os.getpid(), 0)


def process_of(pid: int) -> Process | None:
    """Return the identity of a running process of this host, or None."""
    found = _state_and_ticks(pid)
    return None if found is None or found[0] in _ENDED else Process(this_host(), pid, found[1])


def own_processes() -> list[int]:
    """Return the other processes of this user."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(FileNotFoundError):  # it ended meanwhile
            if entry.name.isdigit() and entry.stat().st_uid == os.getuid():
                found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


def this_host() -> str:
    """Return the scope in which pids are comparable: one boot of one machine, and one pid namespace.

    A host name is not enough: among machines that are all called localhost, a running process would seem to
    have ended.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()}/{boot}/{Path('/proc/self/ns/pid').readlink()}"


def _state_and_ticks(pid: int) -> tuple[str, int] | None:
    """Return the state and the start time of a process; a pid that is used again has another start time."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields[0].decode(), int(fields[19])
