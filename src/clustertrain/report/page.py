"""The page: one HTML file without scripts and without anything from a network."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files

from clustertrain.report.compare import comparison
from clustertrain.report.facts import RunFacts
from clustertrain.report.one_run import about
from clustertrain.report.parts import anchor, details, sections

_MOST_DETAILS = 12


def page_of(runs: Sequence[RunFacts], *, refresh_s: float | None = None) -> str:
    """The report of these runs. `refresh_s`: the browser loads the page again after so many seconds."""
    if len(runs) == 1:
        state = escape(runs[0].status.state)
        return _page(runs[0].name, f'<p class="state {state}">{state}</p>', about(runs[0]), "", refresh_s)
    shown = runs[:_MOST_DETAILS]
    bodies = [
        details(f"{run.name}: {run.status.state}", sections(about(run), f"run{n}-"), css="run")
        for n, run in enumerate(shown)
    ]
    if len(runs) > len(shown):
        bodies.append(f"<p>{len(runs) - len(shown)} more runs have a report of their own only.</p>")
    return _page(f"{len(runs)} runs", "", comparison(runs), "".join(bodies), refresh_s)


def _page(title: str, under: str, parts: Mapping[str, str], more: str, refresh_s: float | None) -> str:
    again = f'<meta http-equiv="refresh" content="{refresh_s:g}">' if refresh_s else ""
    menu = "".join(f'<li><a href="#{anchor(name)}">{name}</a></li>' for name in parts)
    body = sections(parts) + more
    made = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">{again}'
        f'<link rel="icon" href="data:,"><style>{_css()}</style></head><body>'
        f'<a class="skip" href="#main">Skip to the content</a><header><h1>{escape(title)}</h1>{under}'
        f'<nav aria-label="Sections"><ul>{menu}</ul></nav></header><main id="main">{body}</main>'
        f'<footer class="soft"><p>clustertrain report, {made}</p></footer></body></html>\n'
    )


@cache
def _css() -> str:
    return (files("clustertrain.report") / "report.css").read_text(encoding="utf-8")
