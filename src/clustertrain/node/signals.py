"""Signals that request the end of a process: recorded by it, or blocked in the processes that it starts."""

from __future__ import annotations

import signal
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

REQUESTS_TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class ReceivedSignals:
    """The numbers of the signals that this process received, in the order of their arrival."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def include(self, numbers: Collection[int]) -> bool:
        """Whether one of these was received."""
        return any(number in numbers for number in self.numbers)

    def handler(self, number: int, frame: FrameType | None) -> None:
        """A handler for signal.signal."""
        self.numbers.append(number)


@contextmanager
def handled_signals(numbers: Iterable[int]) -> Iterator[ReceivedSignals]:
    """Within the block these signals are recorded, and have no other effect.

    Python allows handlers only in the main thread: in another one they keep the effect that they had.
    """
    received = ReceivedSignals()
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = {number: signal.signal(number, received.handler) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ending_text(returncode: int) -> str:
    """How a process of subprocess.Popen ended, as the predicate of a sentence."""
    if returncode >= 0:
        return f"ended with code {returncode}"
    return f"was killed by signal {signal_text(-returncode)}"


def signal_text(number: int) -> str:
    """The number and the name of a signal: "9 (SIGKILL)". Most real-time signals have no name."""
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)


def block_requests() -> None:
    """Block the signals of REQUESTS_TO_END in this process and in those that it starts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, REQUESTS_TO_END)
