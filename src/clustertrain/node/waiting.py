"""Waiting for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


def wait_until(
    look: Callable[[], _T], timeout_s: float, poll_s: float, is_met: Callable[[_T], object] = bool
) -> _T:
    """Call `look` every `poll_s` seconds until `is_met` accepts its result, or `timeout_s` seconds are over.

    By default a true result is accepted.

    Returns the result of the last call. `look` is called at least once, and a last time at the deadline.
    An exception that it raises ends the wait.
    """
    ends = time.monotonic() + timeout_s
    while True:
        found = look()
        left_s = ends - time.monotonic()
        if is_met(found) or left_s <= 0:
            return found
        time.sleep(min(poll_s, left_s))
