"""How the forks of the fork server have ended: only a parent learns it, and the driver asks for it."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path

from clustertrain.node import variables
from clustertrain.node.waiting import wait_until

_NOTED_WITHIN_S = 0.2  # the driver may notice an end before the parent


def note_ends() -> None:
    """Note from here on how the children of this process end. It has one thread, and waits for no child."""
    signal.signal(signal.SIGCHLD, partial(_note, _folder()))


def _note(folder: Path, *_: object) -> None:
    with suppress(OSError):  # there is no child any more; or the disk is full
        while (end := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = end
            _file(folder, pid).write_text(f"{os.waitstatus_to_exitcode(status)}\n")


def end_of_fork(pid: int) -> int | None:
    """Return the exit code of a fork that has ended on this node, or the negative number of its signal.

    It is None if the process was not a fork.
    """
    if variables.FORK_SERVER not in os.environ:
        return None
    file = _file(_folder(), pid)
    text = wait_until(lambda: file.read_text() if file.exists() else "", _NOTED_WITHIN_S, 0.01)
    return int(text) if text.endswith("\n") else None


def _folder() -> Path:
    return Path(os.environ[variables.FORK_SERVER]).parent


def _file(folder: Path, pid: int) -> Path:
    return folder / f"end-{pid}"
