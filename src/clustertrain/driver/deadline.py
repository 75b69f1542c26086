"""Ends the driver if a call to Ray does not return.

Most of these calls wait inside Ray's C++ code, some without a limit. An exception cannot end such a wait, and
neither can a signal handler, which Python runs only after the call.
"""

from __future__ import annotations

import faulthandler
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from clustertrain.errors import EXIT_CLUSTER
from clustertrain.run.folder import Attempt
from clustertrain.run.result import failed, write_result


@contextmanager
def ending_after(seconds: float, attempt: Attempt, text: str) -> Iterator[None]:
    """End this process and its attempt with the error `text` if the block takes longer than this."""
    timer = threading.Timer(seconds, _end, (attempt, text))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end(attempt: Attempt, text: str) -> None:
    try:
        faulthandler.dump_traceback()  # into the driver's log: the call that does not return
        write_result(attempt, failed(attempt, text, EXIT_CLUSTER))
    finally:
        os._exit(EXIT_CLUSTER)
