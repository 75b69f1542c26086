"""The commands `data` and `ckpt`, with those below them."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path

import click

from clustertrain.cli.options import DATA_NAME, JSON, names_run
from clustertrain.cli.where import RunArguments, about_run, echo_lines, job_here, note


@click.group()
def data() -> None:
    """List, fetch and remove the data sets of a job."""


@data.command("ls")
@names_run
@DATA_NAME
@JSON
def data_ls(named: RunArguments, name: str | None, as_json: bool) -> None:
    """List the data sets: state, size, source and location."""
    from clustertrain.cli.data import data_sets, list_data

    if (job := job_here(named, "data ls", name, *["--json"] * as_json)) is not None:
        echo_lines(list_data(data_sets(job, name), json=as_json))


@data.command("fetch")
@names_run
@DATA_NAME
def data_fetch(named: RunArguments, name: str | None) -> None:
    """Fetch the data sets now, so that no run has to wait for them."""
    from clustertrain.cli.data import data_sets, fetch_data
    from clustertrain.observe.screen import open_screen

    if (job := job_here(named, "data fetch", name)) is not None:
        with closing(open_screen()) as screen:
            fetch_data(data_sets(job, name), screen)


@data.command("evict")
@names_run
@DATA_NAME
@click.option("--force", is_flag=True, help="Also while a run uses them.")
def data_evict(named: RunArguments, name: str | None, force: bool) -> None:
    """Remove the staged data sets, and what killed fetches left behind."""
    from clustertrain.cli.data import data_sets, evict_data

    if (job := job_here(named, "data evict", name)) is not None:
        echo_lines(evict_data(job, data_sets(job, name), force=force))


@click.group()
def ckpt() -> None:
    """Save, list, verify and export the checkpoints of a run."""


@ckpt.command("ls")
@names_run
@JSON
def ckpt_ls(named: RunArguments, as_json: bool) -> None:
    """List the checkpoints, oldest first; of a script the files of its checkpoint folder, newest first."""
    from clustertrain.cli.checkpoints import list_checkpoints

    about_run(named, "ckpt ls", partial(list_checkpoints, json=as_json), *["--json"] * as_json)


@ckpt.command("verify")
@names_run
def ckpt_verify(named: RunArguments) -> None:
    """Read every byte of every checkpoint; exit 4 if one is damaged."""
    from clustertrain.cli.checkpoints import verify_checkpoints

    about_run(named, "ckpt verify", verify_checkpoints)


@ckpt.command("export")
@names_run
@click.option("--name", default=None, help="The checkpoint. Default: the newest.")
@click.option("--best", is_flag=True, help="Export the best checkpoint by checkpoint.keep_best.")
@click.option("--output", default="model.safetensors", show_default=True, help="The file to write.")
@click.option("--send", is_flag=True, hidden=True)
def ckpt_export(named: RunArguments, *, name: str | None, output: str, best: bool, send: bool) -> None:
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
def ckpt_save(named: RunArguments) -> None:
    """Save at the next step, and print the name of the complete checkpoint. The run continues."""
    from clustertrain.cli.checkpoints import save_now

    about_run(named, "ckpt save", save_now)
