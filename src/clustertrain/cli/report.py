"""`clustertrain report` and `clustertrain watch`: the facts of runs, on a page or in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import click

from clustertrain.cli.where import note
from clustertrain.errors import ClusterError, JobError
from clustertrain.launchers.resolve_run import find
from clustertrain.observe.as_json import as_json, last_printed
from clustertrain.observe.run_state import RunState
from clustertrain.observe.screen import Lines
from clustertrain.observe.wait import continues, wait_for_end
from clustertrain.report.curves import MOST_POINTS
from clustertrain.report.facts import RunFacts, facts_of
from clustertrain.report.page import page_of
from clustertrain.report.watch import MOST_POINTS as MOST_WATCHED
from clustertrain.report.watch import block
from clustertrain.run.streams.events import streams_kept
from clustertrain.storage import open_store

_FOLLOW_S, _WATCH_S, _LINES_S = 10.0, 2.0, 10.0
_BUSY = 0.2  # of the time: of a long run each look takes seconds
_LEAST_POINTS = 60


@streams_kept()
def facts(target: str, to: str | None, most_points: int) -> RunFacts:
    """The facts of a run, read here or in its cluster, with its state by its launcher.

    Raises:
        NotStarted, JobError, ClusterError, StorageError: there is no such run, or it cannot be read.
    """
    launcher, run = find(target, (), to, note)
    status = launcher.status(run)
    if launcher.reach is None:
        return facts_of(run.visible_run(), status, most_points)
    printed = "\n".join(launcher.reach.lines(run, ["report", "--send", str(most_points)]))
    if (sent := last_printed(RunFacts, printed)) is None:
        raise ClusterError(
            f"The pod's clustertrain printed no report of {target}.\n"
            "Its version is another one: use that of the image here, too."
        )
    return replace(sent, status=status)


@streams_kept()
def write_report(targets: Sequence[str], to: str | None, output: str, *, follow: bool) -> None:
    """Write the page, and again until all runs are over.

    Raises:
        JobError: stdout is followed.
        StorageError: the file cannot be written.
    """
    if output == "-" and follow:
        raise JobError("--follow writes a file again and again, and -o - is stdout.\nName a file with -o.")
    most_points = max(_LEAST_POINTS, MOST_POINTS // len(targets))

    def write() -> list[RunFacts]:
        runs = [facts(target, to, most_points) for target in targets]
        going_on = follow and not _told(runs)[1].over
        _write(output, page_of(runs, refresh_s=_FOLLOW_S if going_on else None))
        return runs

    runs = write()
    if follow and not _told(runs)[1].over:
        wait_for_end(output, write, _told, note, _FOLLOW_S, busy=_BUSY)
    if output != "-":
        click.echo(f"wrote {output}")


def _write(output: str, page: str) -> None:
    data = page.encode(errors="replace")  # half of a surrogate pair, as in a file name that is not UTF-8
    if output == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    else:
        path = Path(output).absolute()
        open_store(str(path.parent)).write_atomic(path.name, data)


def _told(runs: Sequence[RunFacts]) -> tuple[str, RunState]:
    """The states, and the standing of the run that is furthest from its end."""
    states = ", ".join(f"{run.name}: {run.status.state}" for run in runs)
    standings = (run.status.standing for run in runs)
    return states, min(standings, key=lambda standing: (standing.over, standing.is_settled))


def send(target: str, to: str | None, most_points: int) -> None:
    """Print the facts of a run as JSON, for `facts` on another machine."""
    click.echo(as_json(facts(target, to, most_points)))


@streams_kept()
def watch_run(target: str, to: str | None) -> None:
    """Show a run until it is over: redrawn on a terminal, a block after the other elsewhere."""
    _, run = find(target, (), to, note)
    with continues(target, run.command("watch"), note):
        if not sys.stdout.isatty():
            _watch(target, to, Lines(sys.stdout).echo, _LINES_S, width=60)
            return
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        console = Console(highlight=False)
        with Live(console=console, auto_refresh=False) as live:
            width = max(10, min(100, console.width - 50))
            shown = lambda text: live.update(Text(text, overflow="fold"), refresh=True)  # noqa: E731
            _watch(target, to, shown, _WATCH_S, width=width)


def _watch(target: str, to: str | None, echo: Callable[[str], None], poll_s: float, *, width: int) -> None:
    def told(run: RunFacts) -> tuple[str, RunState]:
        return block(run, width), run.status.standing

    wait_for_end(target, lambda: facts(target, to, MOST_WATCHED), told, echo, poll_s, busy=_BUSY)
