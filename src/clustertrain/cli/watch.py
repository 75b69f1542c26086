"""The commands that show runs and stop them: status, logs, ls, report, stop."""

from __future__ import annotations

from typing import Any

import click

from clustertrain.cli.options import JSON, LISTED, STORAGE, TARGETS, WHERE, names_run
from clustertrain.cli.where import RunArguments, echo_lines, note
from clustertrain.errors import JobError


@click.command()
@names_run
@JSON
def status(named: RunArguments, as_json: bool) -> None:
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


@click.command()
@names_run
@click.option("--rank", type=int, default=None, help="The output of this rank. Default: the run's events.")
@click.option("--node", default=None, metavar="NODE", help="All logs of this node, Ray's included.")
@click.option("--driver", is_flag=True, help="The driver's log: Ray's own output.")
@click.option("--attempt", type=int, default=None, metavar="N", help="Of this attempt. Default: the newest.")
@click.option("-f", "--follow", is_flag=True, help="Follow the run to its end; waits while it is queued.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each line; metrics too.")
def logs(named: RunArguments, **wanted: Any) -> None:
    """Print the events of a run, or the output of its processes."""
    from clustertrain.api import Run

    echo_lines(Run(*named, note).logs(**wanted))


@click.command("ls")
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
    from clustertrain.launchers.elsewhere import RemoteLauncher
    from clustertrain.launchers.listing import list_runs
    from clustertrain.launchers.lookup import launcher_of
    from clustertrain.observe.columns import Columns

    columns = Columns.parsed(options["args"], options["metric"])
    launcher = launcher_of(to) if to is not None else None
    if options["namespace"] is not None and not isinstance(launcher, RemoteLauncher):
        raise JobError("--namespace is of a cluster, which is not named.\nAdd --to kubernetes.")
    if to is not None and options["sweep"] is not None:
        raise JobError("--sweep reads the runs of a storage, not those of a launcher.\nOmit --to.")
    if isinstance(launcher, RemoteLauncher):
        table = launcher.ls(storage, options["namespace"], columns)
    else:
        everywhere, sweep = options["everywhere"], options["sweep"]
        table = list_runs(storage, columns, everywhere=everywhere, sweep=sweep, to=to)
    click.echo(table.json() if as_json else "\n".join(table.lines()))
    for text in table.notes if as_json else ():
        note(f"note: {text}")


@click.command()
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
    from clustertrain.observe.as_json import as_json

    if send is not None:
        click.echo(as_json(reports.facts(targets[0], to, send)))
    else:
        reports.write_report(targets or ("job.yaml",), to, output)


@click.command()
@names_run
@click.option("--no-wait", is_flag=True, help="Return without waiting for the end.")
def stop(named: RunArguments, no_wait: bool) -> None:
    """Stop a run after a last save; a queued run is cancelled."""
    from clustertrain.api import Run

    Run(*named, note).stop(wait=not no_wait, echo=click.echo)
