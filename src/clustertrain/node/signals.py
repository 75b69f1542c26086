"""Signals that ask a process to end: handled in one place, or blocked in what the process starts."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

REQUESTS_TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@contextmanager
def signals_heard(heard: Callable[[int, FrameType | None], None], numbers: Sequence[int]) -> Iterator[None]:
    """These signals are handed to `heard`, and within the block to nobody else."""
    before = {number: signal.signal(number, heard) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def block_requests() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, REQUESTS_TO_END)
