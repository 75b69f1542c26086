"""Ends a rank as soon as the raylet of its node has ended. Its parent is the fork server, or the raylet.

Ray makes a worker wait for the GCS if driver, GCS and raylet are killed together. PR_SET_PDEATHSIG
ends with the thread that sets it, and Ray chooses the thread in which it calls a function.
"""

from __future__ import annotations

import os
import select
import threading

EXIT_CODE = 87  # of a rank whose raylet has ended


def end_with_raylet() -> None:
    """End this process with its raylet from here on, whatever it is doing."""
    if os.getppid() == 0:  # the raylet is outside of this PID namespace
        return
    try:
        fd = os.pidfd_open(int(os.environ["RAY_RAYLET_PID"]))  # Ray sets it
    except ProcessLookupError:
        os._exit(EXIT_CODE)
    threading.Thread(target=_wait_and_end, args=(fd,), name="raylet-watch", daemon=True).start()


def _wait_and_end(fd: int) -> None:
    select.select([fd], [], [])
    os._exit(EXIT_CODE)
