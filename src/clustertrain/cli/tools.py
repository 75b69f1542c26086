"""The command for editors: schema."""

from __future__ import annotations

import click

from clustertrain.cli.options import note_skipped_launchers


@click.command()
def schema() -> None:
    """Print the JSON schema of the job file, for editors."""
    import json

    from clustertrain.job.file import job_schema

    note_skipped_launchers()
    click.echo(json.dumps(job_schema(), indent=2))
