"""Waiting in a test for what another process does."""

from collections.abc import Callable
from typing import TypeVar

from clustertrain.node import waiting

_T = TypeVar("_T")


def wait_until(
    condition: Callable[[], _T],
    within_s: float,
    otherwise: Callable[[], object] = lambda: "",
    poll_s: float = 0.05,
) -> _T:
    """Returns the first true value of the condition.

    Args:
        within_s: far more than it takes on an idle machine.
        otherwise: what to show if it is in vain.
    """
    found = waiting.wait_until(condition, within_s, poll_s)
    if not found:
        raise AssertionError(f"waited {within_s:g} s in vain: {otherwise()}")
    return found
