"""A script with gloo ends as its code says, where torch 2.13 would block or abort the process.

A backward pass leaves gloo's threads an object of Python's to drop, for which they take the GIL. Where the
last reference to the group is that of a DDP model, its destructor joins them with the GIL held. Where
Python is ending, it ends a thread that asks for the GIL, and with it the process, by SIGABRT.
"""

from __future__ import annotations

import atexit
import re
import time
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

_THREADS = "pt_gloo_runloop"
_LOOK_S = 0.005
_MOST_S = 5.0  # that the scheduler may keep a thread waiting


def let_gloo_finish_first() -> None:
    """Have gloo's threads get the GIL before this process destroys its process group, and before it ends."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    def wait_without_gil() -> None:
        if dist.is_initialized():
            _wait_until_at_rest()

    destroy = distributed_c10d.destroy_process_group

    @wraps(destroy)
    def destroy_process_group(*args: Any, **kwargs: Any) -> None:
        wait_without_gil()
        destroy(*args, **kwargs)

    dist.destroy_process_group = distributed_c10d.destroy_process_group = destroy_process_group
    atexit.register(wait_without_gil)


def _wait_until_at_rest() -> None:
    """A thread that waits for the GIL gets it in a sleep here. Then it runs, or has run, at the next look."""
    ends, before = time.monotonic() + _MOST_S, [""]
    while time.monotonic() < ends:
        now = _gloo_threads()
        if now == before and not any("State:\tR" in thread for thread in now):
            return
        before = now
        time.sleep(_LOOK_S)


def _gloo_threads() -> list[str]:
    """The state of each thread, and how often it has waited."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended
            status = (task / "status").read_text(errors="replace")
            if status.startswith(f"Name:\t{_THREADS}\n"):
                found.append(
                    "".join(re.findall(r"^(?:State|voluntary_ctxt_switches).*", status, re.MULTILINE))
                )
    return found
