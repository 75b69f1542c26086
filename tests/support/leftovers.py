"""Counting what a run leaves behind.

The test process is a subreaper: every orphan among its descendants becomes its child, so that the list of its
living descendants is the list of what is left, whatever session or process group it is in. What lives in a
PID namespace of its own is a cluster's, which other tests use at the same time.
"""

import os
import signal
from pathlib import Path

from clustertrain.node.waiting import wait_until
from clustertrain.supervise.guardian import become_subreaper, descendants

become_subreaper()


def living_descendants() -> dict[int, str]:
    """pid → command of every descendant in this PID namespace that is not a zombie."""
    found, ours = {}, Path("/proc/self/ns/pid").stat().st_ino
    for pid in descendants(os.getpid()):
        try:
            state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0].decode()
            namespace = Path(f"/proc/{pid}/ns/pid").stat().st_ino
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if state != "Z" and namespace == ours:
            found[pid] = command[:120]
    return found


def children(pid: int) -> list[int]:
    """The living children of a process with one thread."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def kill_together(*pids: int) -> None:
    """They are stopped first, so that none of them can react to the death of another."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, number)


def left_after(seconds: float, before: set[int]) -> dict[int, str]:
    """The new descendants that are still alive; waits up to `seconds` until there are none."""

    def left() -> dict[int, str]:
        return {pid: command for pid, command in living_descendants().items() if pid not in before}

    wait_until(lambda: not left(), seconds, 0.02)
    return left()
