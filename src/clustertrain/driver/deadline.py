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
    seconds: float, attempt_of: Callable[[], Attempt], result_of: Callable[[Attempt], Result]
) -> Iterator[None]:
    """End this process, and its attempt with this result, if the block takes longer.

    `attempt_of` may wait for the claim of the attempt.
    """
    timer = threading.Timer(seconds, _end, (attempt_of, result_of))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def no_answer(text: str) -> Callable[[Attempt], Result]:
    """The result of an attempt that Ray has not answered."""
    return lambda attempt: failed(attempt, text, EXIT_CLUSTER)


def _end(attempt_of: Callable[[], Attempt], result_of: Callable[[Attempt], Result]) -> None:
    try:
        faulthandler.dump_traceback()  # into the driver's log: the call that does not return
        attempt = attempt_of()
        write_result(attempt, result_of(attempt))
    finally:
        os._exit(EXIT_CLUSTER)
