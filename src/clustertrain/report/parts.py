"""Parts of the page as HTML. Every text is escaped here: names, errors and args are what users wrote."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape


class Html(str):
    """Text that is HTML already; a cell of another kind is escaped."""

    __slots__ = ()


def table(header: Sequence[str], rows: Iterable[Sequence[str]], name: str) -> str:
    """A table that scrolls by itself if it is wide. The first cell of each row is its header."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    head = f"<thead><tr>{head}</tr></thead>" if head else ""
    body = "".join(f"<tr>{_cells(row)}</tr>" for row in rows)
    return scrolled(f"<table>{head}<tbody>{body}</tbody></table>", name)


def scrolled(html: str, name: str) -> str:
    """A region with the keyboard's focus, so that it can be scrolled without a mouse."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(name)}">{html}</div>'


def sections(bodies: Mapping[str, str], prefix: str = "") -> str:
    """A section for each title; `prefix` makes its anchor unique on the page."""
    return "".join(
        f'<section id="{prefix}{anchor(title)}"><h2>{escape(title)}</h2>{body}</section>'
        for title, body in bodies.items()
    )


def anchor(title: str) -> str:
    """The id of a section."""
    return title.lower().replace(" ", "-")


def details(title: str, *parts: str, css: str = "") -> str:
    return f'<details class="{css}"><summary>{escape(title)}</summary>{"".join(parts)}</details>'


def code(text: str, css: str = "") -> str:
    return scrolled(f'<pre class="{css}">{escape(text)}</pre>', "text")


def notes(texts: Sequence[str]) -> str:
    if not texts:
        return ""
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f'<div class="note"><strong>What is missing</strong><ul>{items}</ul></div>'


def _cells(row: Sequence[str]) -> str:
    first, *others = (cell if isinstance(cell, Html) else escape(cell) for cell in row)
    return f'<th scope="row">{first}</th>' + "".join(f"<td>{cell}</td>" for cell in others)
