"""Signals that request the end of a process: recorded by it, or blocked in the processes that it starts."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

REQUESTS_TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@contextmanager
def handled_signals(numbers: Iterable[int]) -> Iterator[list[int]]:
    """Record the signals that arrive within the block, and suppress their other effects.

    Their numbers are added to the list in the order of their arrival.

    Python allows handlers only in the main thread: in another one they keep the effect that they had. So does
    SIGHUP after nohup.
    """
    received: list[int] = []

    def record(number: int, frame: FrameType | None) -> None:
        received.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    is_nohup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    handled = [number for number in numbers if number != signal.SIGHUP or not is_nohup]
    before = {number: signal.signal(number, record) for number in handled}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ending_text(returncode: int) -> str:
    """Return how a process of subprocess.Popen ended, as the predicate of a sentence."""
    if returncode >= 0:
        return f"ended with code {returncode}"
    return f"was killed by signal {signal_text(-returncode)}"


def signal_text(number: int) -> str:
    """Return the number and the name of a signal: "9 (SIGKILL)"; most real-time signals have no name."""
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)


def block_requests() -> None:
    """Block the signals of REQUESTS_TO_END in this process and in those that it starts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, REQUESTS_TO_END)
