"""The result table of the benchmarks of a start."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence


def print_table(title: str, found: Mapping[str, Sequence[float]], ours: str) -> None:
    """Prints median, min and max of each side's seconds, and the ratio of our time to each peer's time."""
    print(f"{title:28}{'median':>9}{'min':>9}{'max':>9}{'ours / this':>12}")
    our_median = statistics.median(found[ours])
    for side, seconds in found.items():
        median = statistics.median(seconds)
        numbers = "".join(f"{s:>7.1f} s" for s in (median, min(seconds), max(seconds)))
        share = f"{our_median / median:>12.2f}" if side != ours else ""
        print(f"{side:28}{numbers}{share}")
