"""`clustertrain report`: the facts of runs, on a page."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from clustertrain.cli.where import note
from clustertrain.errors import ClusterError
from clustertrain.launchers.resolve_run import find
from clustertrain.observe.as_json import last_printed
from clustertrain.observe.report.facts import RunFacts, facts_of
from clustertrain.observe.report.page import page_of
from clustertrain.storage import open_store

_MOST_POINTS, _LEAST_POINTS = 800, 60  # of a curve: a page of many runs has fewer of each


def facts(target: str, to: str | None, most_points: int) -> RunFacts:
    """Return the facts of a run, read here or in its cluster, with its state by its launcher.

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


def write_report(targets: Sequence[str], to: str | None, output: str) -> None:
    """Write the page.

    Raises:
        StorageError: the file cannot be written.
    """
    most_points = max(_LEAST_POINTS, _MOST_POINTS // len(targets))
    page = page_of([facts(target, to, most_points) for target in targets])
    data = page.encode(errors="replace")  # half of a surrogate pair, as in a file name that is not UTF-8
    if output == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    path = Path(output).absolute()
    open_store(str(path.parent)).write_atomic(path.name, data)
    click.echo(f"wrote {output}")
