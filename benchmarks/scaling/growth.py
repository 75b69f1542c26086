"""How a number grows with the ranks, and its value for more ranks than were counted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

_SAME = 0.02  # relative: times and numbers in a record have one digit more or less


@dataclass(frozen=True)
class Growth:
    """A law a + b·f(N), through the two largest counted numbers of ranks.

    Attributes:
        law: "constant", "levels off", "log N" or "N".
    """

    law: str
    base: float
    slope: float

    def at(self, ranks: float) -> float:
        """The value for this number of ranks."""
        if self.law == "log N":
            return self.base + self.slope * math.log2(ranks)
        return self.base + self.slope * ranks if self.law == "N" else self.base


def growth(values: Mapping[int, float]) -> Growth:
    """The law of three values, whose numbers of ranks have the same ratio, such as 64, 256, 1024.

    For log N both steps are equally high; for N the second is higher by that ratio.
    """
    (small, middle, large), ratio = sorted(values), sorted(values)[2] / sorted(values)[1]
    first, second = values[middle] - values[small], values[large] - values[middle]
    last = values[large]
    if second <= _SAME * last:
        return Growth("constant" if first <= _SAME * last else "levels off", last, 0.0)
    if second < first / 2:
        return Growth("levels off", last, 0.0)
    if second < first * math.sqrt(ratio):
        slope = second / math.log2(ratio)
        return Growth("log N", last - slope * math.log2(large), slope)
    slope = second / (large - middle)
    return Growth("N", last - slope * large, slope)
