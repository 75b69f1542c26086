"""A submitted run that waits for others to end: `python -m clustertrain.launchers.local.turn JOB_ID…`.

Each later point of a sweep waits in such a process. So it imports little; when its turn comes, it becomes the
run.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

from clustertrain.node.processes import Process, process_of

START, TURN = "clustertrain.launchers.local.start", "clustertrain.launchers.local.turn"
_POLL_S = 1.0


def job_id_of(process: Process) -> str:
    """Return the ID of the job whose process this is."""
    return f"{process.pid}-{process.pid_started_ticks}"


def place_here() -> dict[str, str]:
    """Return the place of the jobs of this machine."""
    return {"host": socket.gethostname()}


def pid_of(job_id: str) -> int | None:
    """Return the pid of a job that runs on this host, or None."""
    process = process_of(int(job_id.partition("-")[0]))
    return process.pid if process is not None and job_id_of(process) == job_id else None


def waits(pid: int) -> bool:
    """Return whether this process is a run that waits for its turn."""
    try:
        return TURN.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:  # it has ended at this moment
        return False


if __name__ == "__main__":
    while any(pid_of(job_id) is not None for job_id in sys.argv[1:]):
        time.sleep(_POLL_S)
    os.execv(sys.executable, [sys.executable, "-P", "-m", START])
