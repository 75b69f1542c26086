"""Waiting in a test for what another process does."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], within_s: float) -> None:
    """`within_s`: far more than it takes on an idle machine."""
    ends = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < ends, f"waited {within_s} s in vain"
        time.sleep(0.05)
