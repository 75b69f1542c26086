"""Ends the driver if a call to Ray does not return.

Most of these calls wait inside Ray's C++ code, some without a limit. An exception cannot end such a wait, and
neither can a signal handler, which Python runs only after the call.
"""

from __future__ import annotations

import faulthandler
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from clustertrain.errors import EXIT_CLUSTER


@contextmanager
def ending_after(seconds: float, write_end: Callable[[], object]) -> Iterator[None]:
    """End this process if the block takes longer; `write_end` is called first, and writes the result."""
    with calling_after(seconds, partial(_end, write_end)):
        yield


@contextmanager
def calling_after(seconds: float, function: Callable[[], object]) -> Iterator[None]:
    """Call the function in a thread if the block takes longer."""
    timer = threading.Timer(seconds, function)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end(write_end: Callable[[], object]) -> None:
    try:
        faulthandler.dump_traceback()  # into the driver's log: the call that does not return
        write_end()
    finally:
        os._exit(EXIT_CLUSTER)
