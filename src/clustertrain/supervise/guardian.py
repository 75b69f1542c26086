"""The guardian: it starts a command such as the driver, and at the end kills every process below it.

    clustertrain run ──stdin──▶ guardian ──▶ driver ──▶ Ray, controller, workers, their children

Ray starts processes in sessions and process groups of their own, and some outlive their driver by a minute.
The guardian is their subreaper: a process that loses its parent becomes a child of the guardian, which kills
and reaps until it has no child left. It does so when the driver ends and when its own stdin closes: the
launcher closes the pipe, or the kernel closes it when the launcher dies. tini and catatonit reap, but do not
kill what still runs; a systemd scope needs a service manager that containers and many nodes lack.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Make orphans among the descendants of this process its children, not those of init.

    Raises:
        OSError: the kernel refuses (Linux before 3.4, or a filter).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def descendants(pid: int) -> list[int]:
    """All living descendants of a process, from /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):  # it ended meanwhile
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found, queue = [], [pid]
    while queue:
        for child in children.get(queue.pop(), []):
            found.append(child)
            queue.append(child)
    return found


def kill_descendants() -> None:
    """Kill and reap until this process has no child left. The child of a process that forks meanwhile is
    killed in the next round, because it has become a child of this process."""
    while True:
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            return


def main(arguments: Sequence[str]) -> int:
    """Run the command `arguments[2:]` with its output in the file `arguments[1]`; then remove the folder
    `arguments[0]`.

    Returns the exit code of the command; 128 + number when a signal ended it.
    """
    temp_dir, log, command = Path(arguments[0]), Path(arguments[1]), arguments[2:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A terminal sends them to all processes in front of it; only `clustertrain run` handles them.
        signal.signal(number, signal.SIG_IGN)
    become_subreaper()
    with log.open("ab") as file:
        driver = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            preexec_fn=_end_with_guardian,  # noqa: PLW1509  this process has one thread
        )
    _wait_for_end(driver)
    code = driver.poll()
    kill_descendants()
    shutil.rmtree(temp_dir, ignore_errors=True)
    if code is None:
        return 128 + signal.SIGKILL
    return code if code >= 0 else 128 - code


def _end_with_guardian() -> None:
    """Have the kernel kill the driver with the guardian; `clustertrain run` then kills the rest."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait_for_end(driver: subprocess.Popen[bytes]) -> None:
    """Wait until the driver has ended or stdin is closed, by the launcher or because the launcher died."""
    fd = os.pidfd_open(driver.pid)
    try:
        select.select([fd, sys.stdin.fileno()], [], [])
    finally:
        os.close(fd)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
