"""The memory that a step has freed stays with the process for the next step.

By default glibc may give the end of its heap back to the kernel after each step, and the next step gets the
same memory with zeroed pages again, a page fault for each. Whether it does depends on the order of earlier
allocations: of equal ranks some are slow, and the others wait for them.
"""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_KEPT_BYTES = 1 << 30  # at most, of each heap
_LARGE_BYTES = 32 << 20  # of an allocation outside the heaps: glibc's own maximum
_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> None:
    """Set glibc's thresholds for this process and its forks, unless its environment sets them.

    Another allocator is left as it is.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None and not any(name in os.environ for name in _SETTINGS):
        set_option(_TRIM_THRESHOLD, _KEPT_BYTES)
        set_option(_MMAP_THRESHOLD, _LARGE_BYTES)
