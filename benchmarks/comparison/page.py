"""The tables of a report, and the page of the documentation with them."""

from __future__ import annotations

from collections.abc import Iterator

from comparison.figures import FIGURES, Figure
from comparison.results import MAX_LOAD, Report, Row

HEAD = """\
<!-- Written by: python benchmarks/bench.py --page docs/performance.md -->

# Performance

Start, speed, memory and recovery of clustertrain and of other ways to start the same training: LeNet on two
ranks on CPUs with gloo, images of 3×32×32 in 100 classes, a batch of 64 per rank, Adam, one thread per rank.
The programs are in `benchmarks/peers/`. Each was started in turn, in every round, so that a slow minute of
the machine slows all of them.

![Bars of the medians](pictures/performance.svg)
"""


def page(report: Report) -> str:
    """The page as Markdown."""
    where = {"measured": report.taken, "command": f"`{report.command}`", **report.machine, **report.versions}
    facts = [f"| {name} | {value} |" for name, value in where.items()]
    return "\n".join([HEAD, "| | |", "|---|---|", *facts, "", *goals(report), "", tables(report)])


def goals(report: Report) -> list[str]:
    """A table with all goals, reached or not."""
    lines = ["## Goals", "", "| | goal | |", "|---|---|---|"]
    for figure in FIGURES:
        for goal in figure.goals:
            verdict = goal.verdict(report, figure.key, figure.unit)
            lines.append(f"| {figure.title}: {goal.program} | {goal.text(figure.unit)} | {verdict} |")
    return lines


def tables(report: Report) -> str:
    """A section with a table for each figure that was measured."""
    lines: list[str] = []
    for figure in FIGURES:
        rows = [row for row in report.rows if row.figure == figure.key]
        if rows:
            lines += [f"## {figure.title}", "", figure.meaning, "", *table(report, figure, rows), ""]
    return "\n".join([*lines, *remarks(report)])


def remarks(report: Report) -> Iterator[str]:
    """What † and ‡ mean, where there are any."""
    values = [value for row in report.rows for value in row.values]
    if loaded := sum(value.loaded for value in values):
        yield (
            f"† {loaded} of {len(values)} values: other processes used more than {MAX_LOAD:g} processors just"
            " before or after each try.\n"
        )
    for row in report.rows:
        if row.missing and row.values:
            yield f"‡ {row.program}, one of the values is missing: {row.missing}\n"


def table(report: Report, figure: Figure, rows: list[Row]) -> Iterator[str]:
    yield f"| {figure.unit} | median | min | max | goal | |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        own = [goal for goal in figure.goals if goal.program == row.program]
        texts = "; ".join(goal.text(figure.unit) for goal in own)
        verdicts = "; ".join(goal.verdict(report, figure.key, figure.unit) for goal in own)
        yield f"| {row.program} | {' | '.join(cells(row))} | {texts} | {verdicts} |"


def cells(row: Row) -> tuple[str, str, str]:
    """Median, min and max, or why there are none. † marks values of a loaded machine, ‡ a missing value."""
    if row.spread is None:
        return (row.missing.replace("|", "/") or "not measured", "", "")
    marks = ("†" if any(value.loaded for value in row.values) else "") + ("‡" if row.missing else "")
    return (f"{number(row.spread.median)} {marks}".strip(), number(row.spread.low), number(row.spread.high))


def number(value: float) -> str:
    """At least three digits."""
    digits = 0 if value >= 100 or value == int(value) else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}"
