"""The commands that look into a run, and prove that it resumes: explain, stacks, exec, drill, drilled."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import click

from clustertrain.cli.options import JOB_FILE, JSON, ONE_TARGET, SETS, TARGET, names_run
from clustertrain.cli.where import RunArguments, about_run, echo_lines, note
from clustertrain.node.installed import launcher_names

if TYPE_CHECKING:
    from clustertrain.run_files.folder.run_dir import RunDir


@click.command()
@names_run
@click.option("--attempt", type=int, default=None, metavar="N", help="Of this attempt. Default: the newest.")
@JSON
def explain(named: RunArguments, attempt: int | None, as_json: bool) -> None:
    """Show the first cause of a failure over all ranks.

    It comes with the lines that prove it, and what to change. Of a running run it is where each rank is now.
    """
    from clustertrain.observe.as_json import as_json as json_of
    from clustertrain.observe.explain.explanation import explain as explained

    def lines(run: RunDir) -> Iterable[str]:
        found = explained(run, attempt)
        return [json_of(found)] if as_json else found.lines()

    options = ["--json"] * as_json + ([] if attempt is None else [f"--attempt={attempt}"])
    about_run(named, "explain", lines, *options)


@click.command()
@names_run
def stacks(named: RunArguments) -> None:
    """Show where each rank of a running run is, the outlier first.

    Of a script it shows the command that does.
    """
    from clustertrain.observe.explain.stacks import stacks_lines

    about_run(named, "stacks", stacks_lines)


@click.command("exec")
@partial(names_run, target=ONE_TARGET)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND…")
@click.option("--rank", type=click.IntRange(0), required=True, help="On the node of this rank.")
def exec_(named: RunArguments, command: tuple[str, ...], rank: int) -> None:
    """Run a command on the node of a rank, and exit with its code.

    For example `-- nvidia-smi`. RANK and CLUSTERTRAIN_PID, the pid of the rank, are set. On SLURM it is a
    step of the job, on Kubernetes a process in the rank's pod.
    """
    from clustertrain.launchers.resolve_run import find

    launcher, run = find(*named, note)
    sys.exit(launcher.exec(run, rank, command))


@click.command()
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
    from clustertrain.cli.drill import report
    from clustertrain.cli.drill.plan import DrillPlan, faults_of
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


@click.command(hidden=True)
@TARGET
def drilled(target: str) -> None:
    """Print what a run of a drill left, as JSON."""
    from clustertrain.cli.drill.left import left_by
    from clustertrain.observe.as_json import as_json

    about_run(RunArguments(target, (), "local"), "drilled", lambda run: [as_json(left_by(run))])
