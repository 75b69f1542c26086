"""Which process it was, so that anyone on the same machine can tell whether it still lives.

psutil identifies a process by pid and time of start: in another pid namespace these are another process's.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def this_process() -> dict[str, Any]:
    """What identifies this process: host, pid, and its start in clock ticks since boot."""
    _, ticks = _state_and_ticks(os.getpid()) or ("", 0)
    return {"host": this_host(), "pid": os.getpid(), "pid_started_ticks": ticks}


def this_host() -> str:
    """Where a pid means what it means here: the same boot of the same machine, in the same pid namespace.

    Host names alone will not do: on machines that are all called localhost, a live holder would look dead.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()}/{boot}/{Path('/proc/self/ns/pid').readlink()}"


def is_here(process: Mapping[str, Any]) -> bool:
    """Whether a record of `this_process` was made on this host."""
    return process.get("host") == this_host()


def is_gone(process: Mapping[str, Any]) -> bool:
    """Whether a process of this host ended. When in doubt it lives: its silence will tell in the end."""
    pid = int(process["pid"])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False  # another user's; where /proc hides those, nothing more can be known
    found = _state_and_ticks(pid)
    return found is not None and (found[0] in ("Z", "X") or found[1] != process["pid_started_ticks"])


def _state_and_ticks(pid: int) -> tuple[str, int] | None:
    """The state of a process and when it started: a pid that is used again has another start."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields[0], int(fields[19])
