"""The sections about one run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any

from clustertrain.ledger.book import CATEGORIES, Ledger
from clustertrain.report.curves import RANKS, Curve
from clustertrain.report.facts import ATTEMPT_COLOUR, Happened, RunFacts
from clustertrain.report.parts import Html, code, details, notes, scrolled, table
from clustertrain.report.svg import Line, Sign, bar, chart, key, timeline
from clustertrain.run.command_line import typed
from clustertrain.run.records import Repository
from clustertrain.storage import Location
from clustertrain.units import moment_text, size_text, time_text

_TITLES = {
    "lr": "learning rate",
    "samples_per_s": "throughput, samples per second",
    "tokens_per_s": "throughput, tokens per second",
    RANKS: "throughput of each rank alone, steps per second",
    "slowest_rank": "slowest rank",
    "times": "time of a step, seconds",
}
_OF_STEP = ("data_wait_s", "compute_s", "communication_s")
_FIRST = ("loss", "accuracy", "lr", "samples_per_s", "times", RANKS, "slowest_rank")
_SYMBOLS = {
    "worker_died": "✕",
    "watchdog": "✕",
    "restarting": "↻",
    "checkpoint": "▾",
    "stop_requested": "■",
    "resized": "↔",
    "fallback": "!",
}
_MOST_SIGNS, _MOST_LANES = 80, 24


def about(run: RunFacts) -> dict[str, str]:
    """All sections by their titles."""
    status = run.status
    has_failed = status.text and status.state in ("failed", "lost")
    error = f'<p class="note error">{escape(status.text)}</p>' if has_failed else ""
    summary = table((), [row for row in status.rows if row[1] != status.text], "summary")
    return {
        "Summary": error + notes(run.missing) + summary,
        "Curves": curves(run.curves),
        "Where the time went": ledger(run.ledger),
        "Timeline": timeline_of(run) + events(run),
        "Configuration": configuration(run),
        "How to reproduce it": origin(run),
    }


def curves(found: Sequence[Curve]) -> str:
    """A chart for each value; the parts of a step's time share one."""
    if not found:
        return '<p class="soft">No metrics were written.</p>'
    groups: dict[str, list[Line]] = {}
    for each in found:
        if each.name in _OF_STEP:
            groups.setdefault("times", []).append((each.name.removesuffix("_s"), each.points))
        else:
            groups.setdefault(each.name, []).append((each.kind, each.points))
    ranking = {name: n for n, name in enumerate(_FIRST)}
    names = sorted(groups, key=lambda name: ranking.get(name, len(ranking)))
    charts = (chart(_TITLES.get(name, name), groups[name], dots=name == "slowest_rank") for name in names)
    return f'<div class="charts">{"".join(charts)}</div>'


def ledger(book: Ledger | None) -> str:
    """The bar of all seconds, what each category is, and the largest losses with their causes."""
    if book is None or not book.phases:
        return '<p class="soft">There is no ledger of this run.</p>'
    parts = book.by_category()
    order = list(CATEGORIES)
    desc = "; ".join(f"{name} {_share(seconds, book)}" for name, seconds in parts.items())
    bars = bar("Where the time went", [(n, parts.get(n, 0.0)) for n in order], desc)
    rows = [
        (Html(key(order.index(name)) + name), _seconds_text(s), _share(s, book), CATEGORIES[name].meaning)
        for name, s in parts.items()
    ]
    losses = [(each.category, _seconds_text(each.seconds), each.cause or "-") for each in book.losses()[:20]]
    causes = table(("lost to", "time", "cause"), losses, "losses and their causes") if losses else ""
    shares = table(("category", "time", "share", "meaning"), rows, "the ledger")
    return f'<div class="book"><p>{book.total_text}</p>{bars}{shares}{causes}</div>{notes(book.notes)}'


def _seconds_text(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else time_text(seconds)


def _share(seconds: float, book: Ledger) -> str:
    return f"{100 * seconds / (book.wall_s or 1.0):.1f} %"


def timeline_of(run: RunFacts) -> str:
    """Attempts and nodes as lanes, with faults, checkpoints and requests above them."""
    if not run.held:
        return '<p class="soft">The run has not started.</p>'
    nodes = list(dict.fromkeys(each.lane for each in run.held if each.colour != ATTEMPT_COLOUR))
    left_out = {*nodes[_MOST_LANES:]}
    spans = [each for each in run.held if each.colour == ATTEMPT_COLOUR or each.lane not in left_out]
    happened = _signs(run.events)
    signs = [Sign(each.time, _SYMBOLS[each.kind], each.text) for each in happened]
    more = f" {len(nodes) - _MOST_LANES} more nodes are not drawn." if len(nodes) > _MOST_LANES else ""
    lanes = len({each.lane for each in spans})
    desc = f"{lanes} lanes of attempts and nodes, {len(signs)} marks; the events below."
    used = {_SYMBOLS[each.kind]: each.kind.replace("_", " ") for each in happened}
    legend = "".join(f"<li>{symbol} {escape(name)}</li>" for symbol, name in used.items())
    image = scrolled(timeline("Timeline", spans, signs, desc), "timeline")
    return f'{image}<ul class="legend">{legend}</ul><p class="soft">{more}</p>'


def _signs(events: Sequence[Happened]) -> list[Happened]:
    """Of the checkpoints and of the other events only some, if they are many. A restart after a fault has no
    sign, because the fault has one."""
    often = [each for each in events if each.kind == "checkpoint"]
    others: list[Happened] = []
    for each in events:
        after_fault = each.kind == "restarting" and others and others[-1].kind == "worker_died"
        if each.kind in _SYMBOLS and each.kind != "checkpoint" and not after_fault:
            others.append(each)
    return [*often[:: len(often) // _MOST_SIGNS + 1], *others[-_MOST_SIGNS:]]


def events(run: RunFacts) -> str:
    if not run.events:
        return ""
    rows = []
    for _, same in groupby(run.events, key=lambda each: each.text):
        first, *others = same
        again = f" (and {len(others)} times more)" if others else ""
        rows.append((moment_text(first.time), first.text + again))
    left = f", without {run.events_left_out} older ones" if run.events_left_out else ""
    return details(f"{len(run.events)} events{left}", table(("time", "event"), rows, "events"))


def configuration(run: RunFacts) -> str:
    changed = "".join(f"<li>{escape(line)}</li>" for line in run.changes)
    changed = f"<p>The job was changed between attempts:</p><ul>{changed}</ul>" if changed else ""
    rows = [(name, str(value)) for name, value in run.settings.items() if value not in ("{}", "[]", "")]
    return changed + details(f"{len(rows)} keys of the job", table(("key", "value"), rows, "configuration"))


def origin(run: RunFacts) -> str:
    """The commands to run it again, and what it was run from and on."""
    known, commands = run.provenance, []
    repositories = known.source.repositories if known is not None else ()
    changed = [each for each in repositories if each.changed]
    job, diff, is_s3 = f"{run.uri}/job.yaml", f"{run.attempt_uri}/diff.patch", Location(run.uri).is_s3
    endpoint = run.settings.get("storage.endpoint")
    aws = f"aws --endpoint-url {shlex.quote(str(endpoint))} s3 cp" if endpoint else "aws s3 cp"
    for each in repositories:
        if each.commit:
            commands.append(f"cd {shlex.quote(each.folder)} && git checkout {each.commit}")
            if changed == [each] and run.diff:  # that of several is not applied in one of them
                fetch = f"{aws} {shlex.quote(diff)} - | git apply"
                commands.append(fetch if is_s3 else f"git apply {shlex.quote(diff)}")
    again = f"{run.name[:41]}-again"  # a name has at most 47 characters
    if is_s3:
        commands.append(f"{aws} {shlex.quote(job)} {again}.yaml")
        job = f"{again}.yaml"
    commands.append(str(typed("run", job, (f"name={again}",))))
    parts = [code("\n".join(commands)), code_of_stretches(run)]
    if known is not None:
        machine = (
            f"{known.host}, {known.cpus or '?'} CPUs, {size_text(known.memory_bytes or 0)}, {known.platform}"
        )
        rows = [("machine", machine), ("Python", known.python), ("clustertrain", known.version)]
        rows += [("code", repository_text(each)) for each in repositories]
        parts.append(table((), rows, "origin"))
    if run.diff:
        parts.append(details("Changes since the commit", code(run.diff, "diff")))
    if known is not None:
        parts.append(details(f"{len(known.packages)} packages", code("\n".join(known.packages))))
    if run.status.ranks:
        ranks = "\n".join(map(_rank_text, run.status.ranks))
        parts.append(details(f"{len(run.status.ranks)} ranks", code(ranks)))
    return "".join(parts)


def code_of_stretches(run: RunFacts) -> str:
    """The code of each stretch of steps, if it has changed."""
    if len(run.stretches) < 2:
        return ""
    rows = [
        (
            f"from {each.begins}",
            "; ".join(map(repository_text, each.repositories)),
            each.diff_uri,
            each.changed,
        )
        for each in run.stretches
    ]
    head = ("steps", "code", "its changes since the commit", "changed before")
    what = "<p>The code changed between attempts; the commands have the newest.</p>"
    return what + table(head, rows, "code of the steps")


def _rank_text(rank: Mapping[str, Any]) -> str:
    gpus = [str(gpu.get("name")) for gpu in rank.get("gpus") or () if isinstance(gpu, dict)]
    return f"rank {rank.get('rank')}: {rank.get('host')}, {', '.join(gpus) or 'CPU'}"


def repository_text(repository: Repository) -> str:
    """Its commit, and what differs from it."""
    changed = "with changes" if repository.changed else ""
    more = f"{len(repository.untracked)} files that git does not know" if repository.untracked else ""
    parts = (repository.commit or "no commit", changed, more, repository.note, repository.folder)
    return ", ".join(filter(None, parts))
