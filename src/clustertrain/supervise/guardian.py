"""The guardian: it starts a command such as the driver, and at the end kills every process below it.

    clustertrain run ──stdin──▶ guardian ──▶ second guardian ──▶ driver ──▶ Ray, workers, their children

Ray starts processes in sessions and process groups of their own, and some outlive their driver by a minute.
A guardian is their subreaper: a process that loses its parent becomes a child of the guardian, which kills
and reaps until it has no child left. It does so when the driver ends and when its own stdin closes: the
launcher closes the pipe, or the kernel closes it when the launcher dies. The second guardian does the same
when the first one dies, so that no process is left if a launcher and its guardian are killed together. tini
and catatonit reap, but do not kill what still runs; a systemd scope needs a service manager that containers
and many nodes lack.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from clustertrain.supervise.private_folder import remove

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_KILLED_WITHIN_S = 30.0
# A terminal sends them to all processes in front of it; `clustertrain run` alone handles them, or ends.
_OF_TERMINAL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP)


def become_subreaper() -> None:
    """Make orphans among the descendants of this process its children, instead of the children of init.

    Raises:
        OSError: the kernel refuses (Linux before 3.4, or a filter).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def descendants(pid: int) -> list[int]:
    """Return all living descendants of a process, from /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):  # it ended meanwhile
                parent = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found, queue = [], [pid]
    while queue:
        for child in children.get(queue.pop(), []):
            found.append(child)
            queue.append(child)
    return found


def kill_descendants() -> None:
    """Kill and reap until this process has no child left.

    The child of a process that forks meanwhile is killed in the next round, because it has become a child of
    this process. Left are the processes that this user may not kill, as after sudo, and those that the kernel
    does not end, as while they wait for a GPU or a file server.
    """
    pause_s, ends_s = 0.002, time.monotonic() + _KILLED_WITHIN_S
    while True:
        found = descendants(os.getpid())
        killed = [pid for pid in found if _is_killed(pid)]
        if found and (not killed or time.monotonic() > ends_s):
            return
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            return
        # A look at /proc misses a process whose parent ends meanwhile, so it is no use to wait for one here.
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.1)


def _is_killed(pid: int) -> bool:
    """Kill a process; return False if this user may not."""
    try:
        os.kill(pid, signal.SIGKILL)
    except PermissionError:
        return False
    except ProcessLookupError:
        pass
    return True


def main(arguments: Sequence[str]) -> int:
    """Run the command `arguments[2:]`; then remove the folder `arguments[0]`.

    The output of the command goes to the file `arguments[1]`.

    Returns the exit code of the command; 128 + number when a signal ended it.
    """
    temp_dir, log, command = Path(arguments[0]), Path(arguments[1]), list(arguments[2:])
    for number in _OF_TERMINAL:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored by some daemons: how a child ended is lost then
    become_subreaper()
    first, launcher = os.pidfd_open(os.getpid()), 0
    if second := os.fork():
        return _guard(second, temp_dir, [launcher])
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
    driver.returncode = _guard(driver.pid, temp_dir, [launcher, first])  # it has reaped the driver
    return driver.returncode


def _end_with_guardian() -> None:
    """Have the kernel kill the driver with the second guardian; the first one then kills the rest."""
    for number in _OF_TERMINAL:
        signal.signal(number, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _guard(pid: int, temp_dir: Path, parents: Sequence[int]) -> int:
    """Wait until the child has ended, or one of these descriptors of the processes above is readable.

    Then end everything below this process. Returns the exit code.
    """
    select.select([os.pidfd_open(pid), *parents], [], [])
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)
    kill_descendants()
    remove(temp_dir)
    if ended is None:
        return 128 + signal.SIGKILL
    return ended.si_status if ended.si_code == os.CLD_EXITED else 128 + ended.si_status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
