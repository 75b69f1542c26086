"""`clustertrain import`: writes a job file from a script for sbatch, or from the command of a launcher."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from clustertrain.cli.init import write_new
from clustertrain.cli.migrate.job_text import job_text
from clustertrain.cli.migrate.sbatch import found_in_command, found_in_script
from clustertrain.run_files.command_line import typed


def write_job(source: Sequence[str], output: str, echo: Callable[[str], None]) -> None:
    """Write the job file, and print what is not in it; or print the job file, for the output `-`.

    Raises:
        JobError: there is no launch in the source, or the job file exists; nothing was written.
        StorageError: as `write_new`.
    """
    job_file = Path(output)
    found = found_in_script(Path(source[0])) if len(source) == 1 else found_in_command([*source])
    text = job_text(found, Path() if output == "-" else job_file.parent)
    if output == "-":
        echo(text.removesuffix("\n"))
        return
    write_new({job_file: text}, "import", "Name another file: -o FILE")
    for piece in dict.fromkeys(found.left_out):
        echo(f"not in the job file: {piece}")
    echo(f"wrote {job_file}\nnext: {typed('check', str(job_file))}")
