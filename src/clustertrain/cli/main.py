"""The command `clustertrain`: its help, its errors, and which file has which command."""

from __future__ import annotations

import errno
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from clustertrain.errors import EXIT_INTERRUPTED, EXIT_STORAGE, ClusterTrainError, RunStopped
from clustertrain.node.version import __version__

GROUPS = {
    "Start": {
        "init": "start.init",
        "import": "start.import_",
        "check": "start.check",
        "render": "start.render",
        "run": "start.run",
        "submit": "start.submit",
    },
    "Watch": {
        "status": "watch.status",
        "logs": "watch.logs",
        "ls": "watch.ls",
        "report": "watch.report",
        "stop": "watch.stop",
    },
    "Debug": {
        "explain": "debug.explain",
        "stacks": "debug.stacks",
        "exec": "debug.exec_",
        "drill": "debug.drill",
    },
    "Data and checkpoints": {
        "data": "data_and_checkpoints.data",
        "ckpt": "data_and_checkpoints.ckpt",
    },
    "Tools": {"schema": "start.schema"},
}
"""The commands in the order in which people need them, each with its file in this folder and its function."""
_HIDDEN = {"drilled": "debug.drilled"}  # a drill calls it where the storage is
_PLACES = {name: place for places in (*GROUPS.values(), _HIDDEN) for name, place in places.items()}
_REFUSALS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.EIO, errno.ESTALE)


class _Commands(click.Group):
    """The commands: an error of clustertrain ends one with its text and exit code, without a traceback.

    Output that the locale cannot encode is not an error.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_PLACES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the file of a command; for an unknown name all files, so that click proposes the nearest."""
        for name in [cmd_name] if cmd_name in _PLACES else _PLACES:
            file, _, function = _PLACES[name].partition(".")
            self.commands[name] = getattr(import_module(f"clustertrain.cli.{file}"), function)
        return self.commands.get(cmd_name)

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
            found = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(title):
                shown = [(name, command.get_short_help_str(80)) for name, command in found if command]
                formatter.write_dl(shown, col_spacing=2)

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
