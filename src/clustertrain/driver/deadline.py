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

from clustertrain.errors import EXIT_CLUSTER
from clustertrain.run.folder import Attempt
from clustertrain.run.records import Result
from clustertrain.run.result import failed, write_result


@contextmanager
def ending_after(
    seconds: float, attempt: Attempt, text: str, result_of: Callable[[str], Result] | None = None
) -> Iterator[None]:
    """End this process and its attempt with the error `text`, or the result that is made of it, if the block
    takes longer than this."""
    timer = threading.Timer(seconds, _end, (attempt, text, result_of))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end(attempt: Attempt, text: str, result_of: Callable[[str], Result] | None) -> None:
    try:
        faulthandler.dump_traceback()  # into the driver's log: the call that does not return
        write_result(attempt, result_of(text) if result_of else failed(attempt, text, EXIT_CLUSTER))
    finally:
        os._exit(EXIT_CLUSTER)
