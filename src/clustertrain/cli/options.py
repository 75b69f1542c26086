"""The arguments and options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from clustertrain.cli.where import RunArguments
from clustertrain.node.installed import launcher_names


def note_skipped_launchers() -> None:
    """Print a note for each plug-in that cannot be used: its section of a job file is an unknown key."""
    from clustertrain.job.launcher_plugins import problems

    for problem in problems().values():
        click.echo(f"note: {problem}", err=True)


def _may_name_a_job(name: str, **options: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return an argument of a command that reads a job file, and so needs the plug-ins."""

    def noted(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        if not ctx.resilient_parsing:  # otherwise the shell completes
            note_skipped_launchers()
        return value

    return click.argument(name, callback=noted, **options)


SETS = click.option(
    "--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override a key: train.epochs=3."
)
JOB_FILE = _may_name_a_job("job_file", default="job.yaml", metavar="[JOBFILE]", type=click.Path())
STORAGE = _may_name_a_job("storage", required=False, metavar="[STORAGE|JOBFILE]", type=click.Path())
DATA_NAME = click.argument("name", required=False, metavar="[DATASET]")
TARGET = _may_name_a_job("target", default="job.yaml", metavar="[JOBFILE|STORAGE/NAME]", type=click.Path())
ONE_TARGET = _may_name_a_job("target", metavar="JOBFILE|STORAGE/NAME", type=click.Path())
TARGETS = _may_name_a_job("targets", nargs=-1, metavar="[JOBFILE|STORAGE/NAME]…", type=click.Path())
GRID = click.option(
    "--grid",
    multiple=True,
    metavar="KEY=V1,V2",
    help="A run for each combination: lr=0.1,0.01.",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _to(help_text: str, *, required: bool = False) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option("--to", type=click.Choice(launcher_names()), required=required, help=help_text)


TO = _to("The launcher.", required=True)
WHERE = _to("The launcher, if the run was started on several.")
CHECKED = _to("Check the job for this launcher as well.")
LISTED = _to("The runs of this launcher.")


def names_run(
    command: Callable[..., None],
    target: Callable[[Callable[..., None]], Callable[..., None]] = TARGET,
) -> Callable[..., None]:
    """Add the argument and the options that name a run: the command gets them as one value, `named`."""

    @wraps(command)
    def with_name(target: str, sets: tuple[str, ...], to: str | None, **options: Any) -> None:
        command(RunArguments(target, sets, to), **options)

    return target(SETS(WHERE(with_name)))


def start_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of every start, by `run` and by `submit`."""
    for name, help_text in (
        ("--accept-changes", "Resume although the job or the number of workers has changed."),
        ("--takeover", "Start although another start of this run appears to be active."),
        ("--fresh", "Start over; the old run is kept."),
    ):
        command = click.option(name, is_flag=True, help=help_text)(command)
    return command
