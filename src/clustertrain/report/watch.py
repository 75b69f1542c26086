"""A run as a block of text: its state, its curve, and its ledger as a bar."""

from __future__ import annotations

from collections.abc import Sequence

from clustertrain.ledger.book import Ledger
from clustertrain.report.curves import SECONDARY, Curve
from clustertrain.report.facts import RunFacts
from clustertrain.report.svg import Point, Scale, number_text

MOST_POINTS = 400
_HEIGHTS, _FILLS = "▁▂▃▄▅▆▇█", "█▓▒░▞▚▖·"
_MOST_CURVES, _MOST_PARTS = 5, 7


def block(run: RunFacts, width: int = 60) -> str:
    """The lines of a run; `width`: of its curves and its bar, in characters."""
    lines = [f"{run.name}  {run.status.state}", *(f"  {text}" for text in run.status.text.splitlines()[:3])]
    curves = [each for each in run.curves if each.name not in SECONDARY][:_MOST_CURVES]
    lines += [_curve_line(each, width) for each in curves]
    lines += _ledger_lines(run.ledger, width) if run.ledger is not None and run.ledger.phases else []
    lines += [f"  {run.events[-1].text.splitlines()[0]}"] if run.events else []
    return "\n".join([*lines, *(f"  missing: {text}" for text in run.missing)])


def _curve_line(curve: Curve, width: int) -> str:
    step, value = curve.points[-1]
    name = curve.name if curve.kind == "train" else f"{curve.name}, {curve.kind}"
    return f"  {name[:22]:22} {spark(curve.points, width)} {number_text(value)} at step {step:g}"


def spark(points: Sequence[Point], width: int) -> str:
    """A line of blocks; each is the mean of its part of the points."""
    parts = min(width, len(points))
    slices = [points[n * len(points) // parts : (n + 1) * len(points) // parts] for n in range(parts)]
    means = [sum(value for _, value in part) / len(part) for part in slices]
    height = Scale.around(means, 0, len(_HEIGHTS) - 1)
    return "".join(_HEIGHTS[round(height(mean))] for mean in means)


def _ledger_lines(book: Ledger, width: int) -> list[str]:
    """The bar, and what its parts are; small ones are summed as `other`."""
    ordered = sorted(book.by_category().items(), key=lambda part: -part[1])
    parts = ordered[:_MOST_PARTS]
    if len(ordered) > len(parts):
        parts.append(("other", sum(seconds for _, seconds in ordered[_MOST_PARTS:])))
    wall_s = book.wall_s or 1.0
    bar = "".join(fill * round(width * s / wall_s) for fill, (_, s) in zip(_FILLS, parts, strict=False))
    named = [
        f"{fill} {name} {100 * s / wall_s:.0f} %" for fill, (name, s) in zip(_FILLS, parts, strict=False)
    ]
    return [f"  {'time':22} {bar}", f"  {'':22} {'  '.join(named)}", f"  {'':22} {book.total_text}"]
