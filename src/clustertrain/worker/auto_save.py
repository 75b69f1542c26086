"""The clock of `checkpoint.every: auto`: it asks for a save when the interval of Young and Daly is over."""

from __future__ import annotations

import time
from statistics import median

from clustertrain.run_files.save_interval import best_interval_s, first_interval_s


class AutoSave:
    """Rank 0's; its request reaches all ranks as every request does (training/ranks/distributed.py).

    The interval is computed again after each save, from the median of the stalls: one that waited for the
    write before it does not change it.
    """

    def __init__(self, mtbf_s: float) -> None:
        self._mtbf_s = mtbf_s
        self.interval_s = first_interval_s(mtbf_s)
        self._stalls_s: list[float] = []
        self._since_s = time.monotonic()

    def is_due(self) -> bool:
        """Return whether the interval is over; true only once, because the ranks save a step later."""
        is_over = time.monotonic() - self._since_s >= self.interval_s
        if is_over:
            self.started()
        return is_over

    def started(self) -> None:
        """Start the clock again: training goes on after the stall of a save."""
        self._since_s = time.monotonic()

    def saved(self, blocking_s: float, write_s: float) -> None:
        """Plan again: a save is complete. The next one must not come before this one would be written."""
        self._stalls_s.append(blocking_s)
        self.interval_s = max(best_interval_s(median(self._stalls_s), self._mtbf_s), write_s)
