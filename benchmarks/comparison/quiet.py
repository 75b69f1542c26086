"""The machine, and measurements that are made again while other processes use it."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from comparison.results import MAX_LOAD

T = TypeVar("T")


def machine() -> dict[str, str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    processor = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "unknown")
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": processor,
        "processors": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory_bytes / (1 << 30):.0f} GiB",
        "Linux": platform.release(),
        "Python": platform.python_version(),
    }


def foreign_load(seconds: float = 1.0) -> float:
    """How many processors other processes use. Call it while this program's own processes do nothing."""
    before, began = _busy_s(Path("/proc/stat").read_text()), time.monotonic()
    time.sleep(seconds)
    return (_busy_s(Path("/proc/stat").read_text()) - before) / (time.monotonic() - began)


def _busy_s(stat: str, ticks_per_s: int = 100) -> float:
    """Processor seconds since the boot that were neither idle nor waiting for a disk."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, stat.split("\n", 1)[0].split()[1:9])
    return (user + nice + system + irq + softirq + steal) / ticks_per_s


class Quiet:
    """Measures at most `tries` times, until the machine is quiet before and after. The load after one
    measurement is the load before the next. While that is too much, it is read again, at most `waits` times.
    """

    def __init__(self, tries: int, waits: int, load_of: Callable[[], float] = foreign_load) -> None:
        self._tries, self._waits, self._load_of, self._before = tries, waits, load_of, load_of()

    def measure(self, measure: Callable[[], T]) -> tuple[T, float]:
        """What was found in the quietest try, and its load."""
        tries: list[tuple[T, float]] = []
        while len(tries) < self._tries:
            before = self._wait()
            found = measure()
            self._before = self._load_of()
            tries.append((found, max(before, self._before)))
            if tries[-1][1] <= MAX_LOAD:
                break
        return min(tries, key=lambda each: each[1])

    def _wait(self) -> float:
        """Waits for a quiet machine, not for ever; returns the load."""
        for _ in range(self._waits):
            if self._before <= MAX_LOAD:
                break
            self._before = self._load_of()
        return self._before
