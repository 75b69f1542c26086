"""Processes that a killed start left behind: the next start on this machine ends them.

Guardians leave none, unless they are killed together with the process that started them.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from clustertrain.node import variables
from clustertrain.node.processes import own_processes
from clustertrain.node.waiting import wait_until

_END_WITHIN_S = 10.0
_POLL_S = 0.05


def end_processes_of(folder: Path) -> None:
    """End the processes of this user that were started for a private folder, and wait until they are gone."""

    def are_gone() -> bool:
        found = [pid for pid in own_processes() if _belongs_to(pid, folder)]
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not found

    wait_until(are_gone, _END_WITHIN_S, _POLL_S)


def _belongs_to(pid: int, folder: Path) -> bool:
    """Return whether the folder is in the environment of the process, or the process writes a file there.

    Ray's processes overwrite their environment when they change their title, and each writes a log there.
    """
    process = Path(f"/proc/{pid}")
    with suppress(OSError):  # it ended meanwhile, or is protected
        if f"{variables.RAY_DIR}={folder}".encode() in (process / "environ").read_bytes().split(b"\0"):
            return True
        return any(_is_written_in(process, fd.name, folder) for fd in (process / "fd").iterdir())
    return False


def _is_written_in(process: Path, fd: str, folder: Path) -> bool:
    with suppress(OSError):  # it was closed meanwhile
        if not (process / "fd" / fd).readlink().is_relative_to(folder):
            return False
        flags = (process / "fdinfo" / fd).read_text().partition("flags:")[2].split()[0]
        return int(flags, 8) & os.O_ACCMODE != os.O_RDONLY
    return False
