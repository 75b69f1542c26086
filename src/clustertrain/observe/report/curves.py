"""The curves of a run: each measured value over the steps, thinned out to what a chart can show, and drawn.

A chart is stretched to the width of its column, so its texts are beside the drawing; colours and dashes are
in report.css.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from operator import itemgetter

from clustertrain.run_files.streams.events import Record

Point = tuple[float, float]
_LARGEST = 1e300  # the distance of two larger values is not finite
_NO_VALUES = {"step", "epoch", "time", "total_steps", "epoch_progress", "samples_seen"}
_NO_VALUES |= {"slowest_rank", "slowest_rank_s"}


@dataclass(frozen=True)
class StepCurve:
    """A value over the steps. `kind`: of the records that have it, train or eval."""

    name: str
    kind: str
    points: tuple[Point, ...]


def curves_of(records: Iterable[Record], most: int) -> tuple[tuple[StepCurve, ...], int]:
    """Return the curves of these records, and the number of values that no chart can show."""
    found: dict[tuple[str, str], list[Point]] = {}
    left_out = 0
    for record in records:
        for name, value in record.items():
            if name in _NO_VALUES or isinstance(value, bool) or not isinstance(value, int | float):
                continue
            if abs(value) <= _LARGEST:  # which NaN is not
                found.setdefault((name, record["kind"]), []).append((record["step"], value))
            else:
                left_out += 1
    return tuple(StepCurve(*key, tuple(thinned(points, most))) for key, points in found.items()), left_out


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """Return at most `most` of the points.

    These are the lowest and the highest of each stretch, and the last of all.
    """
    if len(points) <= most:
        return list(points)
    kept: list[Point] = []
    count = most // 2 - 1
    for n in range(count):
        stretch = points[n * len(points) // count : (n + 1) * len(points) // count]
        kept += sorted({min(stretch, key=itemgetter(1)), max(stretch, key=itemgetter(1))})
    return [*kept, points[-1]] if kept[-1] != points[-1] else kept


def chart(name: str, lines: Sequence[tuple[str, int, StepCurve]]) -> str:
    """Return the curves of a value over each other, as HTML.

    Each has a label, and the number of its run.
    """
    points = [point for _, _, curve in lines for point in curve.points]
    first, last = min(points)[0], max(points)[0]
    low, high = min(y for _, y in points), max(y for _, y in points)

    def drawn(curve: StepCurve) -> str:
        at = [
            f"{300 * (x - first) / (last - first or 1):.1f},{100 * (high - y) / (high - low or 1):.1f}"
            for x, y in curve.points
        ]
        return " ".join(at * 2 if len(at) == 1 else at)

    told = [
        f"{label}: {curve.points[-1][1]:.5g} at step {curve.points[-1][0]:g}" for label, _, curve in lines
    ]
    css = [f'class="{curve.kind}" style="--n: {n}"' for _, n, curve in lines]
    image = "".join(f'<polyline {c} points="{drawn(each[2])}"/>' for c, each in zip(css, lines, strict=True))
    legend = "".join(f"<li {c}>{escape(text)}</li>" for c, text in zip(css, told, strict=True))
    label = escape(f"{name}, from {low:.5g} to {high:.5g}; {'; '.join(told)}")
    return (
        f"<figure><figcaption>{escape(name)}</figcaption><span>{high:.5g}</span>"
        f'<svg viewBox="0 0 300 100" preserveAspectRatio="none" role="img" aria-label="{label}">{image}</svg>'
        f'<span>{low:.5g}</span><span class="steps">step {first:g} to {last:g}</span>'
        f"<ul>{legend}</ul></figure>"
    )
