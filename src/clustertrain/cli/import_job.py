"""`clustertrain import`: writes a job file from the file or the command of another launcher."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from clustertrain.cli.init import write_new
from clustertrain.migrate.job_text import job_text
from clustertrain.migrate.launch import launch_of_command, launch_of_file
from clustertrain.run.command_line import typed


def write_job(source: Sequence[str], output: str, echo: Callable[[str], None]) -> None:
    """Write the job file, and print what has no counterpart; or print the job file, for the output `-`.

    Raises:
        JobError: the source is not understood, or the job file exists; nothing was written.
        StorageError: as `write_new`.
    """
    job_file = Path(output)
    launch = launch_of_file(Path(source[0])) if len(source) == 1 else launch_of_command(source)
    text, lost = job_text(launch, Path() if output == "-" else job_file.parent)
    if output == "-":
        echo(text.removesuffix("\n"))
        return
    write_new({job_file: text}, "import", "Name another file: -o FILE")
    for finding in lost:
        echo(f"no counterpart: {finding}")
    echo(f"wrote {job_file}\nnext: {typed('check', str(job_file))}")
