"""The commands that make, check and start a job: init, import, check, render, run, submit; and schema.

In: a job file and options, from main.py. Out: a call of api.py, and the exit code of the run.
"""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from clustertrain.cli.options import (
    CHECKED,
    GRID,
    JOB_FILE,
    JSON,
    SETS,
    TO,
    note_skipped_launchers,
    start_options,
)
from clustertrain.cli.where import note
from clustertrain.errors import EXIT_INTERRUPTED, EXIT_STOPPED, ClusterTrainError

if TYPE_CHECKING:
    from clustertrain.api import RunOptions, SubmitOptions
    from clustertrain.launchers.target import Target


@click.command()
@click.argument("folder", default=".")
def init(folder: str) -> None:
    """Write a job file and a Task that run unchanged."""
    from clustertrain.cli.init import write_scaffold

    click.echo(write_scaffold(Path(folder)))


@click.command("import")
@click.argument("source", nargs=-1, required=True, metavar="FILE | -- COMMAND…", type=click.Path())
@click.option("-o", "--output", default="job.yaml", show_default=True, help="The file to write; - prints it.")
def import_(source: tuple[str, ...], output: str) -> None:
    """Write a job file that starts what another launcher starts.

    FILE is a script for sbatch with one launch line. COMMAND is such a line: torchrun, accelerate launch,
    python -m torch.distributed.run, or srun with one of them or with python. Comments in the job file list
    what is not in it.
    """
    from clustertrain.cli.import_job import write_job

    write_job(source, output, click.echo)


@click.command()
@JOB_FILE
@SETS
@CHECKED
@click.option("--no-code", is_flag=True, help="Read the code as text only: import and run none of it.")
@click.option("--defaults", is_flag=True, help="Print the job with every default filled in, as YAML.")
@JSON
def check(
    job_file: str,
    sets: tuple[str, ...],
    to: str | None,
    *,
    no_code: bool,
    defaults: bool,
    as_json: bool,
) -> None:
    """Find mistakes in a job file and in its code; starts nothing.

    The code is imported, its args are bound, and a task is rehearsed on one batch, in a process of its own.
    `submit` does the same first, and so does `run` with --takeover or --fresh. With --to, that launcher
    checks the job as well, against its cluster if it answers.
    """
    from clustertrain.job.file import dump_job, load_job
    from clustertrain.launchers.check import Depth, check_code
    from clustertrain.launchers.lookup import launcher_of
    from clustertrain.launchers.target import silent
    from clustertrain.observe.as_json import as_json as json_of
    from clustertrain.run_files.command_line import typed

    job = load_job(Path(job_file), sets)
    echo = silent if as_json else note if defaults else click.echo
    command, elsewhere = typed("check", job_file, sets), to not in (None, "local")
    depth: Depth = "text" if no_code else "rehearsal"
    checked = check_code(job, echo, command=command, elsewhere=elsewhere, depth=depth)
    if no_code:
        echo(f"{job_file}: the keys and the names are right; the code was not imported")
    if to is not None:
        launcher = launcher_of(to)
        lines = launcher.check(launcher.merged(job), command)
        checked.notes.extend(lines)
        echo("\n".join(lines))
    if as_json:
        click.echo(json_of(checked))
    elif defaults:
        click.echo(dump_job(job, defaults=True), nl=False)


@click.command()
@JOB_FILE
@SETS
@TO
def render(job_file: str, sets: tuple[str, ...], to: str) -> None:
    """Print what `submit` would send, and send nothing."""
    from clustertrain.job.file import load_job
    from clustertrain.launchers.lookup import launcher_of
    from clustertrain.run_files.command_line import typed

    launcher, job = launcher_of(to), load_job(Path(job_file), sets)
    click.echo(launcher.render(launcher.merged(job), typed("render", job_file, sets), note), nl=False)


@click.command()
@JOB_FILE
@SETS
@GRID
@start_options
@click.option("--no-ray", is_flag=True, help="Start the workers without Ray, which is faster.")
@click.option("--debug", is_flag=True, help="Train in this process, one rank: breakpoint() works.")
def run(
    job_file: str,
    sets: tuple[str, ...],
    grid: tuple[str, ...],
    debug: bool,
    **options: Unpack[RunOptions],
) -> None:
    """Train on this machine; an existing run of this name continues. With --grid the points take turns."""
    from clustertrain.cli.grid import points_of

    codes = [0]
    for each in points_of(job_file, sets, grid):
        codes.append(_run_here(job_file, each, debug=debug, **options))
        if codes[-1] in (EXIT_STOPPED, EXIT_INTERRUPTED):  # by the user: no other point starts
            break
    sys.exit(next(filter(None, codes), 0))


def _run_here(job_file: str, sets: tuple[str, ...], *, debug: bool, **options: Unpack[RunOptions]) -> int:
    """Train one run to its end. Returns its exit code."""
    from clustertrain.api import JobStart
    from clustertrain.job.start_environment import start_again_with_hash_seed
    from clustertrain.launchers.check import check_training_installed
    from clustertrain.launchers.known_runs import KnownRun, by_folder
    from clustertrain.observe.screen import open_screen
    from clustertrain.observe.tables import finish

    start = JobStart.of("run", job_file, sets)
    if debug:
        check_training_installed("run")
        if "clustertrain.worker.debug" not in sys.modules:  # of a grid the first point decides
            start_again_with_hash_seed(start.job)
        from clustertrain.worker.debug import debug as train_here

        train_here(start.job)
        return 0
    try:
        with closing(open_screen()) as screen:
            run_dir, result = start.run_here(screen, owns_process=True, **options)
    except KeyboardInterrupt:  # outside the time in which the run handles signals itself
        note(f"The run was stopped by Ctrl-C. Start it again: `{start.command}`")
        return EXIT_INTERRUPTED
    known = KnownRun.of(start.job, job_file, "local")
    return finish(run_dir, result, by_folder(start.command, known))


@click.command()
@JOB_FILE
@SETS
@TO
@GRID
@start_options
@click.option("--no-check", is_flag=True, help="Submit without the check of the code, which takes seconds.")
@click.option("--wait", is_flag=True, help="Follow the run to its end; exit with its code.")
def submit(
    job_file: str,
    sets: tuple[str, ...],
    to: str,
    *,
    grid: tuple[str, ...],
    wait: bool,
    **options: Unpack[SubmitOptions],
) -> None:
    """Check a job and submit it to a scheduler. `--to local` starts it in the background of this machine.

    It runs a snapshot of job and code: later changes have no effect on it. With --grid it is a job for each
    point of a sweep; on this machine one starts when the one before has ended.
    """
    from clustertrain.api import JobStart
    from clustertrain.cli.grid import points_of
    from clustertrain.launchers.lookup import launcher_of

    submitted: list[Target] = []
    codes = [0]
    for each in points_of(job_file, sets, grid):
        start = JobStart.of(f"submit --to {to}", job_file, each)
        before = [run.known.job_id for run in submitted if run.known is not None]
        try:
            run = start.submit(to, click.echo, before, **options)
        except ClusterTrainError as error:
            if not grid:
                raise
            note(f"error: {start.job.name}: {error}")  # the other points do not depend on it
            codes.append(error.exit_code)
        else:
            submitted += [] if run is None else [run]
    if wait:
        codes += [launcher_of(to).follow(run, click.echo) for run in submitted]
    sys.exit(next(filter(None, codes), 0))


@click.command()
def schema() -> None:
    """Print the JSON schema of the job file, for editors."""
    import json

    from clustertrain.job.file import job_schema

    note_skipped_launchers()
    click.echo(json.dumps(job_schema(), indent=2))
