"""Charts as inline SVG. Colours and dashes are the classes s0 to s7 of report.css.

A chart is 360 units wide, so that its text is as large on a phone as beside others on a wide screen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

Point = tuple[float, float]
Points = Sequence[Point]
"""Finite, with ascending x."""
Line = tuple[str, Points]
"""A line of a chart and its name."""
COLOURS = 8
_WIDTH, _HEIGHT = 360, 190
_UNITS = (("seconds", 1), ("minutes", 60), ("hours", 3600), ("days", 86400), ("years", 31_557_600))
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 352, 10, 160


@dataclass(frozen=True)
class Scale:
    """Maps the numbers from `low` to `high` to positions from `start` to `end`; others to the nearer end."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def around(cls, values: Iterable[float], start: float, end: float) -> Scale:
        """From the least to the largest value; around a single value, or none, with some room."""
        found = list(values) or [0.0]
        low, high = min(found), max(found)
        room = (abs(low) / 10 or 0.5) if high - low <= abs(high) * 1e-9 else 0.0
        return cls(low - room, high + room, start, end)

    def __call__(self, value: float) -> float:
        share = min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, most: int) -> list[float]:
        """Multiples of 1, 2 or 5 times a power of ten."""
        step = 10.0 ** math.floor(math.log10((self.high - self.low) / most))
        step *= next(m for m in (1, 2, 5, 10, 20) if (self.high - self.low) / (step * m) <= most)
        first = math.ceil(self.low / step - 1e-9)
        return [n * step for n in range(first, first + most + 2) if n * step <= self.high + step * 1e-9]


def number_text(value: float, digits: int = 4) -> str:
    """A number for a tick or a table: 0.0012, 1.2e-06, 34k, 1.5M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size and abs(value) < 1e12:
            return f"{value / (1e3 if unit == 'k' else size):.{digits}g}{unit}"
    return f"{value:.{digits}g}"


def _tick_texts(values: Sequence[float]) -> list[str]:
    """With as many digits as tell the ticks apart: those of a nearly constant curve differ late."""
    texts = [number_text(value) for value in values]
    digits = 5
    while len({*texts}) < len(texts) and digits <= 16:
        texts = [number_text(value, digits) for value in values]
        digits += 1
    return texts


def svg(told: tuple[str, str], size: tuple[int, int], body: str, css: str) -> str:
    """An image with its title and description for who cannot see it."""
    title, desc = map(escape, told)
    size_text = f'viewBox="0 0 {size[0]} {size[1]}"'
    label = f'role="img" aria-label="{title}. {desc}"'
    return f'<svg class="{css}" {size_text} {label}><title>{title}</title><desc>{desc}</desc>{body}</svg>'


def chart(title: str, lines: Sequence[Line], *, dots: bool = False) -> str:
    """Lines over steps, with a legend if there are several; dots for whole numbers."""
    points = [point for _, line in lines for point in line]
    values = sorted(p[1] for p in points)
    y = Scale.around(shown := _without_outliers(values), _BOTTOM, _TOP)
    cut = f" (cut off at {number_text(shown[-1])})" if len(shown) < len(values) else ""
    ticks = [v for v in y.ticks(5) if not dots or v == int(v)]
    texts = _tick_texts(ticks)
    left = max([_LEFT, *(_width(text) + 6 for text in texts)])
    marks = [_y_tick(y(v), text, left) for v, text in zip(ticks, texts, strict=True)]
    x = Scale.around((p[0] for p in points), left, _RIGHT)
    steps = x.ticks(5)
    marks += [_x_tick(x(step), text) for step, text in zip(steps, _tick_texts(steps), strict=True)]
    marks.append(f'<text class="end" x="{_RIGHT}" y="{_HEIGHT - 2}">step</text>')
    draw = _dots if dots else _path
    drawn = [draw(line, x, y, f"s{n % COLOURS}") for n, (_, line) in enumerate(lines)]
    desc = "; ".join(_told(name, line) for name, line in lines)
    image = svg((title, desc), (_WIDTH, _HEIGHT), "".join([*marks, *drawn]), "chart")
    legend = "".join(f"<li>{key(n)}{escape(name)}</li>" for n, (name, _) in enumerate(lines))
    legend = f'<ul class="legend">{legend}</ul>' if len(lines) > 1 else ""
    return f"<figure><figcaption>{escape(title + cut)}</figcaption>{image}{legend}</figure>"


def _without_outliers(values: Sequence[float]) -> Sequence[float]:
    """Ascending values without the highest 2 % if these would press all others to the bottom of a chart."""
    most = values[: max(1, math.ceil(0.98 * len(values)))]
    return most if values and values[-1] - values[0] > 4 * (most[-1] - values[0]) > 0 else values


def sparkline(name: str, points: Points) -> str:
    """A line without axes, for a cell of a table."""
    x = Scale.around((p[0] for p in points), 2, 98)
    y = Scale.around((p[1] for p in points), 22, 2)
    path = _path(points, x, y, "s0")
    return svg((name, _told(name, points)), (100, 24), path, "spark")


def bar(title: str, parts: Sequence[tuple[str, float]], desc: str) -> str:
    """One bar of parts; those without a length are left out. Part n has the colour of `key(n)`."""
    x = Scale(0.0, sum(length for _, length in parts) or 1.0, 0, 1000)
    at, rects = 0.0, []
    for n, (name, length) in enumerate(parts):
        if length > 0:
            width = max(1.0, x(at + length) - x(at) - 1)
            shape = f'x="{x(at)}" y="0" width="{width:.1f}" height="40"'
            rects.append(f'<rect class="f{n % COLOURS}{_second(n)}" {shape}>{_tip(name)}</rect>')
            at += length
    image = svg((title, desc), (1000, 40), "".join(rects), "bar")
    return image.replace("<svg ", '<svg preserveAspectRatio="none" ', 1)


def key(n: int) -> str:
    """The line or colour of the n-th part, for a legend."""
    shape = f'<path class="s{n % COLOURS}{_second(n)}" d="M0 5H18"/>'
    return f'<svg class="key" aria-hidden="true" viewBox="0 0 18 10">{shape}</svg>'


@dataclass(frozen=True)
class Span:
    """A stretch of a lane, in seconds. `colour`: one of the classes f0 to f7."""

    lane: str
    start: float
    end: float
    text: str
    colour: int = 0


@dataclass(frozen=True)
class Sign:
    """A moment of all lanes: `symbol` is one character."""

    at: float
    symbol: str
    text: str


def timeline(title: str, spans: Sequence[Span], signs: Sequence[Sign], desc: str) -> str:
    """Lanes over the time since the first span, with the signs above them."""
    lanes = list(dict.fromkeys(span.lane for span in spans))
    first = min([*(span.start for span in spans), *(sign.at for sign in signs)])
    last = max([*(span.end for span in spans), *(sign.at for sign in signs)])
    name, unit_s = next(unit for unit in _UNITS if last - first < 100 * unit[1] or unit is _UNITS[-1])
    x = Scale.around((0.0, (last - first) / unit_s), 150, 790)
    top, body = 26, []
    for n, lane in enumerate(lanes):
        body.append(f'<text x="4" y="{top + 22 * n + 13}">{escape(_cut(lane))}</text>')
    for span in spans:
        begin, end = x((span.start - first) / unit_s), x((span.end - first) / unit_s)
        shape = f'x="{begin}" y="{top + 22 * lanes.index(span.lane)}" width="{max(1.5, end - begin):.1f}"'
        body.append(f'<rect class="f{span.colour}" {shape} height="17" rx="2">{_tip(span.text)}</rect>')
    bottom = top + 22 * len(lanes)
    for sign in signs:
        at = x((sign.at - first) / unit_s)
        body.append(f'<path class="sign" d="M{at} 20V{bottom}"/>')
        body.append(f'<text class="mid" x="{at}" y="16">{sign.symbol}{_tip(sign.text)}</text>')
    body += [_x_tick(x(value), f"{value:g}", bottom, 800) for value in x.ticks(8)]
    body.append(f'<text class="end" x="796" y="{bottom + 30}">{name}</text>')
    return svg((title, desc), (800, bottom + 36), "".join(body), "timeline")


def _path(points: Points, x: Scale, y: Scale, css: str) -> str:
    if len(points) == 1:
        return f'<circle class="{css}" r="2.5" cx="{x(points[0][0])}" cy="{y(points[0][1])}"/>'
    return f'<path class="{css}" d="M{" ".join(f"{x(a):g} {y(b):g}" for a, b in points)}"/>'


def _dots(points: Points, x: Scale, y: Scale, css: str) -> str:
    return f'<path class="{css} dots" d="{"".join(f"M{x(a):g} {y(b):g}h0" for a, b in points)}"/>'


def _width(text: str) -> int:
    """Of a number in a chart, at most, whatever font the reader has."""
    return 7 * len(text)


def _y_tick(at: float, text: str, left: float) -> str:
    line = f'<path class="grid" d="M{left} {at}H{_RIGHT}"/>'
    return f'{line}<text class="end" x="{left - 5}" y="{at + 4}">{text}</text>'


def _x_tick(at: float, text: str, bottom: float = _BOTTOM, width: float = _WIDTH) -> str:
    """The text is below the tick, but within the image."""
    middle = min(at, width - _width(text) / 2)
    line = f'<path class="grid" d="M{at} {bottom}v4"/>'
    return f'{line}<text class="mid" x="{middle:g}" y="{bottom + 15}">{text}</text>'


def _told(name: str, points: Points) -> str:
    (x0, y0), (x1, y1) = points[0], points[-1]
    values = [point[1] for point in points]
    return (
        f"{name}: from {y0:.4g} at {x0:g} to {y1:.4g} at {x1:g}, "
        f"between {min(values):.4g} and {max(values):.4g}"
    )


def _tip(text: str) -> str:
    return f"<title>{escape(text)}</title>"


def _second(n: int) -> str:
    return " second" if n % (2 * COLOURS) >= COLOURS else ""


def _cut(text: str, most: int = 22) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
