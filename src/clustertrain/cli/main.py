"""The commands: each reads its options and calls the function that does the work."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import click

from clustertrain.cli.options import (
    CHECKED,
    DATA_NAME,
    GRID,
    JOB_FILE,
    JSON,
    LISTED,
    ONE_TARGET,
    SETS,
    STORAGE,
    TARGET,
    TARGETS,
    TO,
    WHERE,
    names_run,
    note_skipped_launchers,
    start_options,
)
from clustertrain.cli.where import Named, about_run, echo_lines, job_here, note
from clustertrain.errors import (
    EXIT_INTERRUPTED,
    EXIT_STOPPED,
    EXIT_STORAGE,
    ClusterTrainError,
    JobError,
    RunStopped,
)
from clustertrain.node.installed import launcher_names
from clustertrain.version import __version__

if TYPE_CHECKING:
    from clustertrain.api import RunOptions, SubmitOptions
    from clustertrain.launchers.target import Target


GROUPS = {
    "Start": ("init", "import", "check", "render", "run", "submit"),
    "Watch": ("status", "logs", "ls", "report", "stop"),
    "Debug": ("explain", "stacks", "exec", "drill"),
    "Data and checkpoints": ("data", "ckpt"),
    "Tools": ("schema",),
}
"""The commands, in the order in which people need them."""
_REFUSALS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.EIO, errno.ESTALE)


class _Commands(click.Group):
    """The commands: an error of clustertrain ends one with its text and exit code, without a traceback.

    Output that the locale cannot encode is not an error.
    """

    def main(self, *args: Any, **options: Any) -> Any:
        try:
            return super().main(*args, **options)
        except OSError as error:
            is_debugged = "clustertrain.worker.debug" in sys.modules  # the user's code keeps its traceback
            if is_debugged or (text := _refusal(error)) is None:
                raise
            click.echo(f"error: {text}", err=True)
            sys.exit(EXIT_STORAGE)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by GROUPS."""
        for title, names in GROUPS.items():
            commands = [(name, self.commands[name].get_short_help_str(80)) for name in names]
            with formatter.section(title):
                formatter.write_dl(commands, col_spacing=2)

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        from clustertrain.observe.terminal_text import escape_unencodable

        escape_unencodable(sys.stdout)
        return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (ClusterTrainError, RunStopped) as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:  # before a run handles signals itself
            ctx.exit(EXIT_INTERRUPTED)


def _refusal(error: OSError) -> str | None:
    """Return the error for a file or an output that this user may not use; None for a bug of clustertrain."""
    from clustertrain.storage.posix import refused

    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    if error.filename is None and is_full:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes its buffer once more at the end
        return f"The output cannot be written: {error.strerror}.\nFree space there."
    if error.filename is not None and (is_full or error.errno in _REFUSALS):
        return str(refused(Path(str(error.filename)), "used", error))
    return None


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__)
def main() -> None:
    """One job file: the same PyTorch DDP training on a laptop, a SLURM cluster or Kubernetes.

    Exit codes: 0 done, 1 training failed, 2 bad job file or arguments, 3 cluster refused,
    4 data or storage, 75 stopped with a checkpoint (run again to continue), 130 interrupted.
    """


@main.command()
@click.argument("folder", default=".")
def init(folder: str) -> None:
    """Write a job file and a Task that run unchanged."""
    from clustertrain.cli.init import write_scaffold

    click.echo(write_scaffold(Path(folder)))


@main.command("import")
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


@main.command()
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
    from clustertrain.launchers.check import check_code
    from clustertrain.launchers.lookup import launcher_of
    from clustertrain.launchers.target import silent
    from clustertrain.observe.as_json import as_json as json_of
    from clustertrain.run.command_line import typed

    job = load_job(Path(job_file), sets)
    echo = silent if as_json else note if defaults else click.echo
    command, elsewhere = typed("check", job_file, sets), to not in (None, "local")
    checked = check_code(job, echo, command=command, elsewhere=elsewhere, as_text=no_code)
    if to is not None:
        launcher = launcher_of(to)
        lines = launcher.check(launcher.merged(job), command)
        checked.notes.extend(lines)
        echo("\n".join(lines))
    if as_json:
        click.echo(json_of(checked))
    elif defaults:
        click.echo(dump_job(job, defaults=True), nl=False)


@main.command()
@JOB_FILE
@SETS
@TO
def render(job_file: str, sets: tuple[str, ...], to: str) -> None:
    """Print what `submit` would send, and send nothing."""
    from clustertrain.job.file import load_job
    from clustertrain.launchers.lookup import launcher_of
    from clustertrain.run.command_line import typed

    launcher, job = launcher_of(to), load_job(Path(job_file), sets)
    click.echo(launcher.render(launcher.merged(job), typed("render", job_file, sets), note), nl=False)


@main.command()
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
    from clustertrain.api import Start
    from clustertrain.cli.grid import points_of
    from clustertrain.launchers.lookup import launcher_of

    submitted: list[Target] = []
    codes = [0]
    for each in points_of(job_file, sets, grid):
        start = Start.of(f"submit --to {to}", job_file, each)
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


@main.command()
def schema() -> None:
    """Print the JSON schema of the job file, for editors."""
    import json

    from clustertrain.job.file import job_schema

    note_skipped_launchers()
    click.echo(json.dumps(job_schema(), indent=2))


@main.command()
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
    from clustertrain.api import Start
    from clustertrain.job.start_environment import start_again_with_hash_seed
    from clustertrain.launchers.check import check_training_installed
    from clustertrain.launchers.known_runs import KnownRun, by_folder
    from clustertrain.observe.screen import open_screen
    from clustertrain.observe.tables import finish

    start = Start.of("run", job_file, sets)
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


@main.command()
@JOB_FILE
@SETS
@click.option("--to", type=click.Choice(launcher_names()), default="local", show_default=True, help="Where.")
@click.option("--steps", type=click.IntRange(6), default=12, show_default=True, help="Of each run of a task.")
@click.option("--seed", type=int, default=0, show_default=True, help="Draws the moments of the faults.")
@click.option("--faults", default="rank,driver,stop,save", show_default=True, help="Those to cause.")
@click.option("--keep", is_flag=True, help="Keep the runs even if all are exact.")
@JSON
def drill(
    job_file: str,
    sets: tuple[str, ...],
    to: str,
    *,
    steps: int,
    seed: int,
    faults: str,
    keep: bool,
    as_json: bool,
) -> None:
    """Prove that this training resumes.

    It is trained shortly, again with faults, and every bit is compared with the run without a fault: the
    losses of each step, the samples of each epoch, the random states and every tensor of the checkpoints. The
    exit code is 1 if something differs; then the report names the first step and tensor. The runs are named
    NAME-drill-… in the job's storage.
    """
    from clustertrain.drill import report
    from clustertrain.drill.plan import DrillPlan, faults_of
    from clustertrain.errors import EXIT_FAILED
    from clustertrain.launchers.check import check_training_installed
    from clustertrain.observe.as_json import as_json as json_of

    plan = DrillPlan(job_file, sets, to, faults_of(faults), steps, seed)
    if to == "local":
        check_training_installed("drill")
    found = report.drill(plan, note, keep=keep)
    echo_lines([json_of(found)] if as_json else found.lines())
    if not found.exact:
        sys.exit(EXIT_FAILED)


@main.command(hidden=True)
@TARGET
def drilled(target: str) -> None:
    """Print what a run of a drill left, as JSON."""
    from clustertrain.drill.left import left_by
    from clustertrain.observe.as_json import as_json

    about_run(Named(target, (), "local"), "drilled", lambda run: [as_json(left_by(run))])


@main.command("ls")
@STORAGE
@LISTED
@click.option("--namespace", default=None, help="With --to kubernetes. Default: that of kubectl's context.")
@click.option("--args", multiple=True, metavar="NAME[,…]", help="Add the values of these args: lr.")
@click.option("--metric", multiple=True, metavar="NAME[,…]", help="Add the last and the best: accuracy:max.")
@click.option("--sweep", default=None, metavar="NAME", help="The points of a --grid, with what differs.")
@click.option("--all", "everywhere", is_flag=True, help="Also your runs of other folders.")
@JSON
def ls(storage: str | None, to: str | None, as_json: bool, **options: Any) -> None:
    """List your runs on this machine, on SLURM and on Kubernetes.

    They are the runs of this folder, if it has any. With STORAGE or JOBFILE: the runs of that storage.
    """
    from clustertrain.launchers.listing import list_runs
    from clustertrain.launchers.lookup import launcher_of
    from clustertrain.observe.columns import Columns

    columns = Columns.parsed(options["args"], options["metric"])
    if to is None and options["namespace"] is not None:
        raise JobError("--namespace is of a cluster, which is not named.\nAdd --to kubernetes.")
    if to is not None and options["sweep"] is not None:
        raise JobError("--sweep reads the runs of a storage, not those of a launcher.\nOmit --to.")
    if to is not None:
        table = launcher_of(to).ls(storage, options["namespace"], columns)
    else:
        table = list_runs(storage, columns, everywhere=options["everywhere"], sweep=options["sweep"])
    click.echo(table.json() if as_json else "\n".join(table.lines()))
    for text in table.notes if as_json else ():
        note(f"note: {text}")


@main.command()
@names_run
@JSON
def status(named: Named, as_json: bool) -> None:
    """Show the state of a run."""
    from clustertrain.api import Run
    from clustertrain.observe.status import NotStarted, is_job_file
    from clustertrain.observe.status_json import StoredStatus
    from clustertrain.observe.tables import print_table

    try:
        found = Run(*named, note).status()
    except NotStarted:
        if not as_json or not is_job_file(named.target):
            raise
        found = StoredStatus()  # a program that watches a job may be there before its first start
    if as_json:
        click.echo(found.json())
    else:
        print_table(found.rows)


@main.command()
@names_run
@click.option("--rank", type=int, default=None, help="The output of this rank. Default: the run's events.")
@click.option("--node", default=None, metavar="NODE", help="All logs of this node, Ray's included.")
@click.option("--driver", is_flag=True, help="The driver's log: Ray's own output.")
@click.option("--attempt", type=int, default=None, metavar="N", help="Of this attempt. Default: the newest.")
@click.option("-f", "--follow", is_flag=True, help="Follow the run to its end; waits while it is queued.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each line; metrics too.")
def logs(named: Named, **wanted: Any) -> None:
    """Print the events of a run, or the output of its processes."""
    from clustertrain.api import Run

    echo_lines(Run(*named, note).logs(**wanted))


@main.command()
@names_run
@click.option("--attempt", type=int, default=None, metavar="N", help="Of this attempt. Default: the newest.")
@JSON
def explain(named: Named, attempt: int | None, as_json: bool) -> None:
    """Show the first cause of a failure over all ranks.

    It comes with the lines that prove it, and what to change. Of a running run it is where each rank is now.
    """
    from clustertrain.cli.explain import explain_lines

    options = ["--json"] * as_json + ([] if attempt is None else [f"--attempt={attempt}"])
    about_run(named, "explain", lambda run: explain_lines(run, attempt, as_json=as_json), *options)


@main.command()
@names_run
def stacks(named: Named) -> None:
    """Show where each rank of a running run is, the outlier first.

    Of a script it shows the command that does.
    """
    from clustertrain.cli.explain import stacks_lines

    about_run(named, "stacks", stacks_lines)


@main.command()
@names_run
@click.option("--no-wait", is_flag=True, help="Return without waiting for the end.")
def stop(named: Named, no_wait: bool) -> None:
    """Stop a run after a last save; a queued run is cancelled."""
    from clustertrain.api import Run

    Run(*named, note).stop(wait=not no_wait, echo=click.echo)


@main.command("exec")
@partial(names_run, target=ONE_TARGET)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND…")
@click.option("--rank", type=click.IntRange(0), required=True, help="On the node of this rank.")
def exec_(named: Named, command: tuple[str, ...], rank: int) -> None:
    """Run a command on the node of a rank, and exit with its code.

    For example `-- nvidia-smi`. RANK and CLUSTERTRAIN_PID, the pid of the rank, are set. On SLURM it is a
    step of the job, on Kubernetes a process in the rank's pod.
    """
    from clustertrain.launchers.resolve_run import find

    launcher, run = find(*named, note)
    sys.exit(launcher.exec(run, rank, command))


@main.command()
@TARGETS
@WHERE
@click.option(
    "-o", "--output", default="report.html", show_default=True, help="The file to write; - prints it."
)
@click.option("--send", type=int, default=None, hidden=True)
def report(targets: tuple[str, ...], to: str | None, output: str, send: int | None) -> None:
    """Write curves, ledger and attempts of runs as one HTML file.

    Of several runs it shows what differs as well.
    """
    from clustertrain.cli import report as reports

    if send is not None:
        reports.send(targets[0], to, send)
    else:
        reports.write_report(targets or ("job.yaml",), to, output)


@main.group()
def ckpt() -> None:
    """Save, list, verify and export the checkpoints of a run."""


@ckpt.command("ls")
@names_run
@JSON
def ckpt_ls(named: Named, as_json: bool) -> None:
    """List the checkpoints, oldest first; of a script the files of its checkpoint folder, newest first."""
    from clustertrain.cli.checkpoints import checkpoints_json, list_checkpoints

    options = ["--json"] if as_json else []
    about_run(named, "ckpt ls", checkpoints_json if as_json else list_checkpoints, *options)


@ckpt.command("verify")
@names_run
def ckpt_verify(named: Named) -> None:
    """Read every byte of every checkpoint; exit 4 if one is damaged."""
    from clustertrain.cli.checkpoints import verify_checkpoints

    about_run(named, "ckpt verify", verify_checkpoints)


@ckpt.command("export")
@names_run
@click.option("--name", default=None, help="The checkpoint. Default: the newest.")
@click.option("--best", is_flag=True, help="Export the best checkpoint by checkpoint.keep_best.")
@click.option("--output", default="model.safetensors", show_default=True, help="The file to write.")
@click.option("--send", is_flag=True, hidden=True)
def ckpt_export(named: Named, *, name: str | None, output: str, best: bool, send: bool) -> None:
    """Write the weights as safetensors, and their origin as JSON."""
    from clustertrain.cli.checkpoints import export_model, send_checkpoint
    from clustertrain.launchers.check import check_training_installed
    from clustertrain.launchers.resolve_run import find

    launcher, run = find(*named, note)
    if send:
        send_checkpoint(run.visible_run(), name, best=best)
        return
    check_training_installed("ckpt export")
    click.echo("wrote {} and {}".format(*export_model(launcher, run, name, Path(output), best=best)))


@ckpt.command("save")
@names_run
def ckpt_save(named: Named) -> None:
    """Save at the next step, and print the name of the complete checkpoint. The run continues."""
    from clustertrain.cli.checkpoints import save_now

    about_run(named, "ckpt save", save_now)


@main.group()
def data() -> None:
    """List, fetch and remove the data sets of a job."""


@data.command("ls")
@names_run
@DATA_NAME
@JSON
def data_ls(named: Named, name: str | None, as_json: bool) -> None:
    """List the data sets: state, size, source and location."""
    from clustertrain.cli.data import data_json, data_sets, list_data

    options = ["--json"] if as_json else []
    if (job := job_here(named, "data ls", name, *options)) is not None:
        echo_lines((data_json if as_json else list_data)(data_sets(job, name)))


@data.command("fetch")
@names_run
@DATA_NAME
def data_fetch(named: Named, name: str | None) -> None:
    """Fetch the data sets now, so that no run has to wait for them."""
    from clustertrain.cli.data import data_sets, fetch_data

    if (job := job_here(named, "data fetch", name)) is not None:
        fetch_data(data_sets(job, name), click.echo)


@data.command("evict")
@names_run
@DATA_NAME
@click.option("--force", is_flag=True, help="Also while a run uses them.")
def data_evict(named: Named, name: str | None, force: bool) -> None:
    """Remove the staged data sets, and what killed fetches left behind."""
    from clustertrain.cli.data import data_sets, evict_data

    if (job := job_here(named, "data evict", name)) is not None:
        echo_lines(evict_data(job, data_sets(job, name), force=force))
