"""The command line: one command, one line of logic; what it does is one hop away."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clustertrain.errors import EXIT_INTERRUPTED, EXIT_JOB, ClusterTrainError, JobError, RunStopped
from clustertrain.version import __version__

if TYPE_CHECKING:
    from clustertrain.job.model import Job

SETS = click.option(
    "--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override a key: train.epochs=3."
)
JOB_FILE = click.argument("job_file", default="job.yaml", metavar="[JOBFILE]")
DATA_NAME = click.argument("name", required=False)
TARGET = click.argument("target", default="job.yaml", metavar="[JOBFILE|RUNFOLDER]")
SCHEDULERS = click.Choice(["slurm", "kubernetes"])
TO = click.option("--to", "to", type=SCHEDULERS, required=True, help="For which scheduler.")

WHERE = click.option("--to", "to", type=SCHEDULERS, help="Where it runs; needed for kubernetes alone.")


def start_options(command: Callable[..., None]) -> Callable[..., None]:
    """What may be said of a start, wherever it happens."""
    for name, help_text in (
        ("--retry", "Try again though failures.attempts ended without progress."),
        ("--allow-world-size-change", "Resume at another number of workers."),
        ("--takeover", "Run even though another start of this run seems to live."),
        ("--fresh", "Begin anew; the old run is kept aside."),
    ):
        command = click.option(name, is_flag=True, help=help_text)(command)
    return command


class _Commands(click.Group):
    """Errors of the kit end with their text and code; no traceback for what a user can mend."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (ClusterTrainError, RunStopped) as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:  # before a run listens to signals itself
            ctx.exit(EXIT_INTERRUPTED)


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
    """Write a job file and a Task that run as they are."""
    from clustertrain.cli.init import write_scaffold

    click.echo(write_scaffold(Path(folder)))


@main.command()
@JOB_FILE
@SETS
@click.option("--to", "to", type=click.Choice(["kubernetes"]), help="As this scheduler would check it, too.")
def validate(job_file: str, sets: tuple[str, ...], to: str | None) -> None:
    """Check a job file; prints it with every default filled in.

    With --to kubernetes: also by the rules of the operator, and against the cluster where one answers. A file
    of manifests is checked likewise.
    """
    from clustertrain.job.file import dump_job, load_job

    if to == "kubernetes":
        from clustertrain.launchers.kubernetes.submit import validate as validate_for_kubernetes

        click.echo("\n".join(validate_for_kubernetes(Path(job_file), sets)))
        return
    click.echo(dump_job(load_job(Path(job_file), sets)), nl=False)


@main.command()
@JOB_FILE
@SETS
@TO
def render(job_file: str, sets: tuple[str, ...], to: str) -> None:
    """Print what `submit` would send, and send nothing."""
    from clustertrain.job.file import load_job
    from clustertrain.job.site import with_site
    from clustertrain.launchers.slurm.submit import prepare

    if to == "kubernetes":
        from clustertrain.launchers.kubernetes.submit import render as render_for_kubernetes

        click.echo(render_for_kubernetes(load_job(Path(job_file), sets)), nl=False)
        return
    rendered, _ = prepare(with_site(load_job(Path(job_file), sets)), job_file)
    click.echo(rendered.script, nl=False)
    if sets:
        click.echo(f"note: sent by hand, sbatch's job reads {job_file} as it is, without --set", err=True)


@main.command()
@JOB_FILE
@SETS
@TO
@start_options
@click.option("--wait", is_flag=True, help="Follow the run to its end; exit with its code.")
def submit(job_file: str, sets: tuple[str, ...], to: str, wait: bool, **options: bool) -> None:
    """Check a job and hand it to a scheduler, with a snapshot of its code."""
    from clustertrain.job.file import load_job
    from clustertrain.launchers.slurm.submit import submit, what_next
    from clustertrain.observe.wait import follow_to_its_end
    from clustertrain.run.begin import Options

    if to == "kubernetes":
        from clustertrain.launchers.kubernetes.submit import submit_and_tell

        sys.exit(
            submit_and_tell(load_job(Path(job_file), sets), job_file, Options(**options), click.echo, wait)
        )
    submitted = submit(load_job(Path(job_file), sets), job_file, Options(**options), click.echo)
    if submitted is not None:
        named = submitted.run.store.uri(submitted.run.name) if sets else job_file
        click.echo(what_next(submitted, named))
    if submitted is not None and wait:
        sys.exit(follow_to_its_end(submitted.run, job_file, click.echo))


@main.command()
def schema() -> None:
    """Print the JSON schema of the job file, for editors."""
    import json

    from clustertrain.job.file import job_schema

    click.echo(json.dumps(job_schema(), indent=2))


@main.command()
@JOB_FILE
@SETS
@start_options
def run(job_file: str, sets: tuple[str, ...], **options: bool) -> None:
    """Train on this machine, or go on where the run of this name stopped."""
    from clustertrain.job.file import load_job
    from clustertrain.launchers.local.run import run_local
    from clustertrain.observe.screen import open_screen
    from clustertrain.observe.tables import finish
    from clustertrain.run.begin import Options

    job = load_job(Path(job_file), sets)
    needs_training("run")
    screen = open_screen()
    try:
        run_dir, result = run_local(job, Options(**options), screen)
    finally:
        screen.close()
    sys.exit(finish(run_dir, result, job_file))


@main.command("ls")
@click.argument("storage", default="runs", metavar="[STORAGE|JOBFILE]")
@WHERE
@click.option("--namespace", default=None, help="With --to kubernetes; that of kubectl's context without it.")
def ls(storage: str, to: str | None, namespace: str | None) -> None:
    """List the runs of a storage; with --to kubernetes the RayJobs of a namespace."""
    from clustertrain.observe.status import all_runs
    from clustertrain.observe.tables import list_lines

    if to == "kubernetes":
        from clustertrain.launchers.kubernetes.look import cluster
        from clustertrain.launchers.kubernetes.status import list_lines as list_rayjobs

        click.echo("\n".join(list_rayjobs(cluster(storage, namespace))))
        return
    click.echo("\n".join(list_lines(all_runs(storage))))


@main.command()
@TARGET
@SETS
@WHERE
@click.option("--json", "as_json", is_flag=True, hidden=True)
def status(target: str, sets: tuple[str, ...], to: str | None, as_json: bool) -> None:
    """Show where a run stands."""
    from clustertrain.observe.status import find_run, status_of
    from clustertrain.observe.tables import print_table, status_rows

    if to == "kubernetes":
        from clustertrain.launchers.kubernetes.status import show

        show(on_kubernetes(target, sets))
    elif as_json:
        from clustertrain.observe.status_json import tell

        click.echo(tell(target))
    else:
        print_table(status_rows(status_of(find_run(without_sets(target, sets)))))


@main.command()
@TARGET
@SETS
@WHERE
@click.option("--rank", type=int, default=None, help="The output of this rank; without it, what happened.")
@click.option("--node", default=None, metavar="NODE", help="All logs of this node, Ray's included.")
@click.option("--driver", is_flag=True, help="The driver's log: Ray's own words.")
@click.option("--attempt", type=int, default=None, metavar="N", help="Of this attempt, not the newest.")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run ends; waits while it is queued.")
def logs(target: str, sets: tuple[str, ...], to: str | None, follow: bool, **wanted: Any) -> None:
    """Print what happened in a run, or what a rank or a node printed."""
    from clustertrain.observe.logs import Wanted, log_lines
    from clustertrain.observe.status import find_run

    if to == "kubernetes":
        from clustertrain.launchers.kubernetes import logs as kubernetes_logs

        lines = kubernetes_logs.log_lines(on_kubernetes(target, sets), Wanted(**wanted), follow=follow)
    else:
        lines = log_lines(find_run(without_sets(target, sets)), Wanted(**wanted), follow=follow)
    for line in lines:
        click.echo(line)


@main.command()
@TARGET
@SETS
@WHERE
@click.option("--no-wait", is_flag=True, help="Ask, and do not wait for the end.")
def stop(target: str, sets: tuple[str, ...], to: str | None, no_wait: bool) -> None:
    """Ask a run to finish its step, save and end; one that is queued is cancelled."""
    from clustertrain.launchers.slurm.stop import stop_run
    from clustertrain.observe.status import find_run

    if to == "kubernetes":
        from clustertrain.launchers.kubernetes import stop as kubernetes_stop

        kubernetes_stop.stop(on_kubernetes(target, sets), click.echo, wait=not no_wait)
    else:
        stop_run(find_run(without_sets(target, sets)), click.echo, wait=not no_wait)


@main.group()
def ckpt() -> None:
    """List, verify and export the checkpoints of a run."""


@ckpt.command("ls")
@TARGET
def ckpt_ls(target: str) -> None:
    """List the checkpoints, oldest first."""
    from clustertrain.cli.checkpoints import list_checkpoints
    from clustertrain.observe.status import find_run

    click.echo("\n".join(list_checkpoints(find_run(target))))


@ckpt.command("verify")
@TARGET
def ckpt_verify(target: str) -> None:
    """Read every byte of every checkpoint; exit 4 when one is damaged."""
    from clustertrain.cli.checkpoints import verify_checkpoints
    from clustertrain.observe.status import find_run

    for line in verify_checkpoints(find_run(target)):
        click.echo(line)


@ckpt.command("export")
@TARGET
@click.option("--name", default=None, help="Which checkpoint; the newest without it.")
@click.option("--to", "to", default="model.safetensors", show_default=True, help="The file to write.")
def ckpt_export(target: str, name: str | None, to: str) -> None:
    """Write the weights as safetensors, and where they are from as JSON."""
    from clustertrain.cli.checkpoints import choose
    from clustertrain.observe.status import find_run

    run = find_run(target)
    checkpoint = choose(run, name)
    needs_training("ckpt export")
    from clustertrain.checkpoints.export import export

    click.echo("wrote {} and {}".format(*export(run.checkpoints, checkpoint, Path(to))))


@main.group()
def data() -> None:
    """List, fetch, verify and remove the data sets of a job."""


@data.command("ls")
@JOB_FILE
@DATA_NAME
def data_ls(job_file: str, name: str | None) -> None:
    """Show which data sets are here, how much of them, and where."""
    from clustertrain.cli.data import data_sets, list_data
    from clustertrain.job.file import load_job

    click.echo("\n".join(list_data(data_sets(load_job(Path(job_file)), name))))


@data.command("fetch")
@JOB_FILE
@DATA_NAME
def data_fetch(job_file: str, name: str | None) -> None:
    """Bring the data sets here now, so that no run has to wait for them."""
    from clustertrain.cli.data import data_sets, fetch_data
    from clustertrain.job.file import load_job

    fetch_data(data_sets(load_job(Path(job_file)), name), click.echo)


@data.command("verify")
@JOB_FILE
@DATA_NAME
def data_verify(job_file: str, name: str | None) -> None:
    """Read every byte of the data sets that are here; exit 4 when one is not what was staged."""
    from clustertrain.cli.data import data_sets, verify_data
    from clustertrain.job.file import load_job

    for line in verify_data(data_sets(load_job(Path(job_file)), name)):
        click.echo(line)


@data.command("evict")
@JOB_FILE
@DATA_NAME
@click.option("--force", is_flag=True, help="Also while a run uses them.")
def data_evict(job_file: str, name: str | None, force: bool) -> None:
    """Remove the data sets from here, and what killed fetches left of them."""
    from clustertrain.cli.data import data_sets, evict_data
    from clustertrain.job.file import load_job

    job = load_job(Path(job_file))
    for line in evict_data(job, data_sets(job, name), force=force):
        click.echo(line)


def on_kubernetes(job_file: str, sets: tuple[str, ...]) -> Job:
    """The job as it was submitted: the cluster, the namespace and the run's name are in it."""
    from clustertrain.job.file import load_job
    from clustertrain.job.site import with_site

    return with_site(load_job(Path(job_file), sets))


def without_sets(target: str, sets: tuple[str, ...]) -> str:
    """A run is found by its storage and name: keys that are set here are for --to kubernetes."""
    if sets:
        raise JobError("--set is given without --to kubernetes.\nName the folder of the run instead.")
    return target


def needs_training(command: str) -> None:
    """Refuse a command that needs torch and ray where they are not installed; looks, and imports neither."""
    from clustertrain.node.installed import missing_for_training

    if missing := missing_for_training():
        click.echo(
            f"error: `clustertrain {command}` needs {' and '.join(missing)}, not installed here.\n"
            "pip install 'clustertrain[train]'",
            err=True,
        )
        sys.exit(EXIT_JOB)


if __name__ == "__main__":
    main()
