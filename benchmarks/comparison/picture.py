"""The medians of the main figures as bars: SVG in light and dark colors."""

from __future__ import annotations

from xml.sax.saxutils import escape

from comparison.figures import FIGURES, Figure
from comparison.page import number
from comparison.results import Report, Row

WIDTH, LABELS, BAR, GAP, TITLE = 960, 250, 18, 6, 40
STYLE = """\
<style>
  .ground { fill: #fff } text { fill: #223 } .unit { fill: #556 }
  .peer { fill: #9fb3cc } .ours { fill: #3f51b5 }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #1e2129 } text { fill: #e6e8ee } .unit { fill: #a8adbd }
    .peer { fill: #5b6b82 } .ours { fill: #8c9eff }
  }
</style>"""


def picture(report: Report) -> str:
    """One group of bars for each figure that has a picture; clustertrain's bars have the strong color."""
    parts: list[str] = []
    top = 16
    for figure in (each for each in FIGURES if each.picture):
        rows = [row for row in report.rows if row.figure == figure.key and row.values]
        if rows:
            parts += group(figure, rows, top)
            top += TITLE + len(rows) * (BAR + GAP)
    label = "Medians of clustertrain and of other launchers; the numbers are in the tables of this page"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}"'
            f' height="{top}" font-family="Helvetica, Arial, sans-serif" font-size="13" role="img"'
            f' aria-label="{label}">',
            STYLE,
            f'<rect class="ground" width="{WIDTH}" height="{top}" rx="10"/>',
            *parts,
            "</svg>\n",
        ]
    )


def group(figure: Figure, rows: list[Row], top: int) -> list[str]:
    """The title of a figure and a bar for each row."""
    medians = [row.spread.median for row in rows if row.spread]
    scale = (WIDTH - LABELS - 120) / (max(medians) or 1.0)
    lines = [
        f'<text x="24" y="{top + 20}" font-size="15" font-weight="bold">{escape(figure.title)}'
        f'<tspan class="unit" font-weight="normal" font-size="12" dx="8">{escape(figure.unit)}</tspan></text>'
    ]
    for index, (row, median) in enumerate(zip(rows, medians, strict=True)):
        y, width = top + TITLE - 8 + index * (BAR + GAP), round(median * scale, 1)
        side = "ours" if row.program.startswith("clustertrain") else "peer"
        lines += [
            f'<text x="{LABELS - 8}" y="{y + 14}" text-anchor="end">{escape(row.program)}</text>',
            f'<rect class="{side}" x="{LABELS}" y="{y}" width="{width}" height="{BAR}" rx="3"/>',
            f'<text x="{LABELS + width + 8}" y="{y + 14}">{number(median)}</text>',
        ]
    return lines
