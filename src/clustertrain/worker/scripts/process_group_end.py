"""A script with gloo ends as its code says, where torch 2.13 would block or abort the process.

A backward pass leaves gloo's threads an object of Python's to drop, for which they take the GIL. Where the
last reference to the group is that of a DDP model, its destructor joins them with the GIL held. Where
Python is ending, it ends a thread that asks for the GIL, and with it the process, by SIGABRT.
"""

from __future__ import annotations

import atexit
import time
from functools import wraps
from typing import Any

_THREADS_TAKE_S = 0.05


def let_gloo_finish_first() -> None:
    """Have gloo's threads get the GIL before this process destroys its process group, and before it ends."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    def wait_without_gil() -> None:
        if dist.is_initialized():
            time.sleep(_THREADS_TAKE_S)

    destroy = distributed_c10d.destroy_process_group

    @wraps(destroy)
    def destroy_process_group(*args: Any, **kwargs: Any) -> None:
        wait_without_gil()
        destroy(*args, **kwargs)

    dist.destroy_process_group = distributed_c10d.destroy_process_group = destroy_process_group
    atexit.register(wait_without_gil)
