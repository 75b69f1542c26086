"""The page: one HTML file without scripts and without anything from a network."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files

from clustertrain.node.units import moment_text, time_text
from clustertrain.observe.ledger.book import CATEGORIES, Ledger
from clustertrain.observe.report.curves import StepCurve, chart
from clustertrain.observe.report.facts import RunFacts

_LATER = ("data_wait_s", "compute_s", "communication_s", "lr")  # after the curves that people look for
_MOST_FAILURES, _MOST_CAUSES = 20, 5


def page_of(runs: Sequence[RunFacts]) -> str:
    """Return the report of these runs; for several, also what differs, and their curves over each other."""
    title = escape(runs[0].name if len(runs) == 1 else f"{len(runs)} runs")
    bodies = {
        "Summary": _side_by_side(runs, [dict(run.status.rows) for run in runs]) + _missing(runs),
        "What differs": _differences(runs),
        "Curves": _curves(runs),
        "Where the time went": "".join(_ledger(run.name, run.ledger) for run in runs),
        "Attempts": _attempts(runs),
    }
    sections = "".join(f"<section><h2>{name}</h2>{body}</section>" for name, body in bodies.items() if body)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<style>{_css()}</style></head><body><h1>{title}</h1><main>{sections}</main>"
        f"<footer>clustertrain report, {time.strftime('%Y-%m-%d %H:%M:%S %Z')}</footer></body></html>\n"
    )


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table that scrolls by itself if it is wide, also with the keyboard.

    Every cell is escaped.
    """
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll" tabindex="0">{table}</div>'


def _side_by_side(runs: Sequence[RunFacts], values: Sequence[Mapping[str, str]]) -> str:
    """Return a table with a row for each key, and a column for each run."""
    keys = dict.fromkeys(key for each in values for key in each)
    rows = [(key, *(each.get(key, "-") for each in values)) for key in keys]
    return _table(("", *(run.name for run in runs)), rows)


def _missing(runs: Sequence[RunFacts]) -> str:
    items = "".join(f"<li>{escape(f'{run.name}, {text}')}</li>" for run in runs for text in run.missing)
    return f"<p>What is missing:</p><ul>{items}</ul>" if items else ""


def _differences(runs: Sequence[RunFacts]) -> str:
    """Return a table of the keys whose values differ, the args first."""
    if len(runs) == 1:
        return ""
    keys = dict.fromkeys(key for run in runs for key in run.compared)
    differing = [key for key in keys if len({run.compared.get(key) for run in runs}) > 1]
    differing.sort(key=lambda key: not key.startswith("args."))
    if not differing:
        return "<p>The jobs of these runs are equal.</p>"
    return _side_by_side(runs, [{key: run.compared.get(key, "-") for key in differing} for run in runs])


def _curves(runs: Sequence[RunFacts]) -> str:
    """Return a chart for each value, with the curves of all runs and kinds."""
    found: dict[str, list[tuple[str, int, StepCurve]]] = {}
    for n, run in enumerate(runs):
        for each in run.curves:
            label = each.kind if len(runs) == 1 else f"{run.name}, {each.kind}"
            found.setdefault(each.name, []).append((label, n, each))
    charts = (chart(name, found[name]) for name in sorted(found, key=lambda name: name in _LATER))
    return f'<div class="charts">{"".join(charts)}</div>' if found else ""


def _ledger(name: str, book: Ledger | None) -> str:
    """Return the bar of all seconds, the meaning of each category, and the largest causes of each loss."""
    if book is None or not book.phases:
        return f"<p>There is no ledger of {escape(name)}.</p>"
    numbers = {category: n for n, category in enumerate(CATEGORIES)}
    bar, keys = "", ""
    for category, seconds in book.by_category().items():
        share, losses = seconds / book.wall_s, [loss for loss in book.losses() if loss.category == category]
        causes = "; ".join(f"{_seconds(loss.seconds)}: {loss.cause}" for loss in losses[:_MOST_CAUSES])
        css = f'style="--n: {numbers[category]}; --share: {share:.5f}"'
        bar += f'<i {css} title="{category} {share:.1%}"></i>'
        text = f"{_seconds(seconds)}, {share:.1%}: {CATEGORIES[category].meaning}"
        keys += f"<dt {css}>{category}</dt><dd>{escape(text)}<small>{escape(causes)}</small></dd>"
    notes = "".join(f"<li>{escape(note)}</li>" for note in book.notes)
    title = escape(f"{name}: {book.total_text}")
    return f'<h3>{title}</h3><div class="bar">{bar}</div><dl>{keys}</dl><ul>{notes}</ul>'


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else time_text(seconds)


def _attempts(runs: Sequence[RunFacts]) -> str:
    """Return a table of the attempts, and why their workers failed: the newest causes, if there are many."""
    rows = [
        (
            f"{run.name} {each.n}",
            moment_text(each.began),
            _seconds(each.ended - each.began),
            str(len(each.failures)),
            each.how,
            "\n".join(each.failures[-_MOST_FAILURES:]),
        )
        for run in runs
        for each in run.attempts
    ]
    return _table(("attempt", "began", "took", "failures", "ended", "causes"), rows)


@cache
def _css() -> str:
    return (files("clustertrain.observe.report") / "report.css").read_text(encoding="utf-8")
