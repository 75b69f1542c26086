"""Waiting for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


def wait_until(condition: Callable[[], _T], timeout_s: float, poll_s: float) -> _T:
    """Call `condition` every `poll_s` seconds until it returns a true value or `timeout_s` seconds are over.

    Returns the result of the last call. `condition` is called at least once, and a last time at the deadline.
    An exception that it raises ends the wait.
    """
    ends = time.monotonic() + timeout_s
    while True:
        found = condition()
        left_s = ends - time.monotonic()
        if found or left_s <= 0:
            return found
        time.sleep(min(poll_s, left_s))
