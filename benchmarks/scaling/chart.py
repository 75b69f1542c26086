"""Lines over the number of ranks, as SVG in light and dark colors. The axis of the ranks is logarithmic."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, PANEL, LEFT, RIGHT, TOP, BOTTOM = 960, 340, 80, 300, 56, 52
COLORS = ("a", "b", "c", "d", "e")
STYLE = """\
<style>
  .ground { fill: #fff } text { fill: #223 } .unit { fill: #556 } .grid { stroke: #d5dae4 }
  .line { fill: none; stroke-width: 2.5 }
  .a { stroke: #3f51b5 } .b { stroke: #c2410c } .c { stroke: #15803d }
  .d { stroke: #a21caf } .e { stroke: #64748b }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #1e2129 } text { fill: #e6e8ee } .unit { fill: #a8adbd } .grid { stroke: #3a404d }
    .a { stroke: #8c9eff } .b { stroke: #fb923c } .c { stroke: #4ade80 }
    .d { stroke: #e879f9 } .e { stroke: #94a3b8 }
  }
</style>"""

Line = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Panel:
    """Some lines with one scale. `is_log`: of the values; otherwise the axis is from 0 to `top`."""

    title: str
    unit: str
    lines: Mapping[str, Line]
    is_log: bool = False
    top: float = 1.0


def chart(label: str, panels: Sequence[Panel]) -> str:
    """The panels one below the other; `label` says in words what they show."""
    height = PANEL * len(panels)
    parts = [line for number, panel in enumerate(panels) for line in drawn(panel, number * PANEL)]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}"'
        f' height="{height}"'
        f' font-family="Helvetica, Arial, sans-serif" font-size="13" role="img" aria-label="{escape(label)}">'
    )
    ground = f'<rect class="ground" width="{WIDTH}" height="{height}" rx="10"/>'
    return "\n".join([head, STYLE, ground, *parts, "</svg>\n"])


def drawn(panel: Panel, top: int) -> list[str]:
    """The title, the axes, the lines and their names."""
    xs = sorted({x for line in panel.lines.values() for x, _ in line})
    ys = [y for line in panel.lines.values() for _, y in line if y > 0]
    low, high = (
        (_decade(min(ys), math.floor), _decade(max(ys), math.ceil)) if panel.is_log else (0.0, panel.top)
    )

    def x_of(value: float) -> float:
        share = math.log(value / xs[0]) / math.log(xs[-1] / xs[0])
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y_of(value: float) -> float:
        share = math.log(max(value, low) / low) / math.log(high / low) if panel.is_log else value / high
        return round(top + PANEL - BOTTOM - share * (PANEL - TOP - BOTTOM), 1)

    parts = [
        f'<text x="24" y="{top + 30}" font-size="15" font-weight="bold">{escape(panel.title)}'
        f'<tspan class="unit" font-weight="normal" font-size="12" dx="8">{escape(panel.unit)}</tspan></text>'
    ]
    for value in _ticks(low, high, panel.is_log):
        y = y_of(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="unit" x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{value:g}</text>')
    for value in xs:
        y = top + PANEL - BOTTOM + 18
        parts.append(f'<text class="unit" x="{x_of(value)}" y="{y}" text-anchor="middle">{value:,.0f}</text>')
    middle, below = (LEFT + WIDTH - RIGHT) / 2, top + PANEL - 14
    parts.append(f'<text class="unit" x="{middle}" y="{below}" text-anchor="middle">ranks</text>')
    names = _apart({name: y_of(line[-1][1]) for name, line in panel.lines.items()})
    for color, (name, line) in zip(COLORS, panel.lines.items(), strict=False):
        points = " ".join(f"{x_of(x)},{y_of(y)}" for x, y in line)
        parts.append(f'<polyline class="line {color}" points="{points}"/>')
        at, end = names[name], WIDTH - RIGHT
        parts.append(f'<line class="line {color}" x1="{end + 6}" x2="{end + 22}" y1="{at}" y2="{at}"/>')
        parts.append(f'<text x="{end + 28}" y="{at + 4}">{escape(name)}</text>')
    return parts


def _apart(places: Mapping[str, float], least: float = 18.0) -> dict[str, float]:
    """The places of names at the ends of their lines, moved up so that none covers another."""
    found: dict[str, float] = {}
    above = math.inf
    for name, place in sorted(places.items(), key=lambda each: -each[1]):
        above = min(place, above - least)
        found[name] = above
    return found


def _decade(value: float, rounded: Callable[[float], int]) -> float:
    """The power of ten at or beside a value."""
    return 10.0 ** rounded(math.log10(value))


def _ticks(low: float, high: float, is_log: bool) -> list[float]:
    if not is_log:
        return [high * tenth / 5 for tenth in range(6)]
    return [10.0**power for power in range(round(math.log10(low)), round(math.log10(high)) + 1)]
