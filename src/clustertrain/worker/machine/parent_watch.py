"""Ends a rank as soon as the process that started it has ended: the raylet of its node.

Ray makes a worker wait for the GCS if driver, GCS and raylet are killed together. PR_SET_PDEATHSIG
ends with the thread that sets it, and Ray chooses the thread in which it calls a function.
"""

from __future__ import annotations

import os
import select
import threading

EXIT_CODE = 87  # of a rank whose raylet has ended


def end_with_parent() -> None:
    """From here on, this process ends with its parent, whatever it is doing."""
    parent = os.getppid()
    if parent == 0:  # it is outside of this PID namespace
        return
    try:
        fd = os.pidfd_open(parent)
    except ProcessLookupError:
        os._exit(EXIT_CODE)
    if os.getppid() != parent:  # it ended before the call: the number may be another process's
        os._exit(EXIT_CODE)
    threading.Thread(target=_wait_and_end, args=(fd,), name="parent-watch", daemon=True).start()


def _wait_and_end(fd: int) -> None:
    select.select([fd], [], [])
    os._exit(EXIT_CODE)
