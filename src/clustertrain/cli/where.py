"""Where a command reads a storage: on this machine, or in the cluster if only the cluster has it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

import click

if TYPE_CHECKING:
    from clustertrain.job.model import Job
    from clustertrain.run_files.folder.run_dir import RunDir


class RunArguments(NamedTuple):
    """The arguments that name a run: a job file or a folder, its `--set` options, and --to."""

    target: str
    sets: tuple[str, ...]
    to: str | None


def about_run(
    named: RunArguments, command: str, lines: Callable[[RunDir], Iterable[str]], *options: str
) -> None:
    """Print the lines about a run, or the output of the command with these options in its cluster."""
    from clustertrain.launchers.resolve_run import find

    launcher, run = find(*named, note)
    if launcher.reach is None:
        echo_lines(lines(run.visible_run()))
    else:
        echo_lines(launcher.reach.lines(run, [*command.split(), *options]))


def job_here(named: RunArguments, command: str, name: str | None, *options: str) -> Job | None:
    """Return the job whose data this machine reads, or None if its cluster has the data.

    For a job of a cluster, print the output of the command there.
    """
    from clustertrain.job.model import Job
    from clustertrain.launchers.resolve_run import find_job

    found = find_job(*named, note)
    if isinstance(found, Job):
        return found
    reach, run = found
    echo_lines(reach.lines(run, [*command.split(), *([name] if name else []), *options]))
    return None


def echo_lines(lines: Iterable[str]) -> None:
    """Print the lines, without anything in them that can change the terminal."""
    from clustertrain.observe.terminal_text import plain

    for line in lines:
        click.echo(plain(line))


def note(text: str) -> None:
    """Print a remark to stderr, beside the output of the command."""
    click.echo(text, err=True)
