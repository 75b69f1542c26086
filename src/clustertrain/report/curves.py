"""The curves of a run: each measured value over the steps, thinned out to what a chart can show."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from statistics import median
from typing import Any

from clustertrain.report.svg import COLOURS, Point

MOST_POINTS = 800
RANKS = "rank_s"
"""The value with a number for each rank."""
SECONDARY = ("data_wait_s", "compute_s", "communication_s", RANKS, "slowest_rank", "lr")
"""What is not shown where there is room for few curves only."""
_LARGEST = 1e300  # the distance of two larger values is not finite
_NO_VALUES = {"step", "epoch", "time", "total_steps", "epoch_progress", "samples_seen", "slowest_rank_s"}
_NO_VALUES |= {RANKS}


@dataclass(frozen=True)
class Curve:
    """A value over the steps.

    Attributes:
        name: of the value, such as `loss`.
        kind: "train" or "eval", or whose it is, such as `rank 3`.
    """

    name: str
    kind: str
    points: tuple[Point, ...]


def curves_of(records: Sequence[dict[str, Any]], most: int) -> tuple[tuple[Curve, ...], int]:
    """The curves of the records `train` and `eval`. Values that no chart can show are only counted."""
    found: dict[tuple[str, str], list[Point]] = {}
    left_out = 0
    for record in records:
        step, kind = record["step"], record["kind"]
        measured = [(name, kind, value) for name, value in record.items() if name not in _NO_VALUES]
        for name, of, value in (*measured, *_of_ranks(record)):
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            if abs(value) <= _LARGEST:  # which NaN is not
                found.setdefault((name, of), []).append((step, value))
            else:
                left_out += 1
    return tuple(Curve(*key, tuple(thinned(points, most))) for key, points in found.items()), left_out


def _of_ranks(record: dict[str, Any]) -> Iterable[tuple[str, str, float]]:
    """(name, kind, value): the steps per second of each rank without waiting for others, of many ranks the
    least, the median and the most; then the slowest rank."""
    value = record.get(RANKS)
    if not isinstance(value, list) or not value or not all(isinstance(each, int | float) for each in value):
        return
    speeds = [1 / each if each > 0 else math.inf for each in value]
    if len(speeds) <= COLOURS:
        yield from ((RANKS, f"rank {rank}", speed) for rank, speed in enumerate(speeds))
    else:
        named = (("slowest", min(speeds)), ("median", median(speeds)), ("fastest", max(speeds)))
        yield from ((RANKS, name, speed) for name, speed in named)
    yield "slowest_rank", "rank", float(speeds.index(min(speeds)))


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """At most `most` of the points: of each stretch the lowest and the highest, and the last of all."""
    if len(points) <= most:
        return list(points)
    kept: list[Point] = []
    count = most // 2 - 1
    for n in range(count):
        stretch = points[n * len(points) // count : (n + 1) * len(points) // count]
        extremes = {min(stretch, key=itemgetter(1)), max(stretch, key=itemgetter(1))}
        kept += sorted(extremes)
    return [*kept, points[-1]] if kept[-1] != points[-1] else kept
