"""The command line that started a run: messages repeat it when they advise the next command.

A process without a command line, such as the driver, names the run by its folder: `command_on(run.uri, …)`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clustertrain.job.values import is_secret_key, without_credentials

_PROGRAM = "clustertrain"


@dataclass(frozen=True)
class CommandLine:
    """The start of a run, as its user typed it.

    As text it is the command that starts the run again, to which a message may append options: `clustertrain
    run job.yaml --set name=a --fresh`.

    Attributes:
        start: the command: `run`, or `submit --to slurm`.
        job_file: its path as the user gave it; JOBFILE if this process does not know it.
        sets: the `--set` options, without credentials.
        program: the program as its user types it.
        run: names the run in other commands where the job file does not: its folder.
    """

    start: str = "run"
    job_file: str = "JOBFILE"
    sets: tuple[str, ...] = ()
    program: str = _PROGRAM
    run: str = ""

    def __str__(self) -> str:
        return self.on_job(self.start)

    def of(self, command: str, *options: str) -> str:
        """Return another command on the same run: `clustertrain status job.yaml --set name=a`."""
        if self.run:
            return command_on(self.run, command, *options, program=self.program)
        return self.on_job(command, *options)

    def again_with(self, option: str) -> str:
        """Return the start with another option, for a line below the start itself."""
        return f"the same with {option}" if self.sets else f"{self} {option}"

    def named(self, name: str) -> CommandLine:
        """Return the start of the same job as a run with another name."""
        others = (each for each in self.sets if not each.startswith("name="))
        return replace(self, sets=(*others, f"name={name}"), run="")

    def on_job(self, command: str, *options: str) -> str:
        """Return another command on the job file: `clustertrain render --to slurm job.yaml`."""
        overrides = [word for each in self.sets for word in ("--set", each)]
        return command_on(self.job_file, command, *overrides, *options, program=self.program)

    def recorded(self) -> CommandLine:
        """Return the same start for a reader in another folder, and perhaps on another machine."""
        return replace(self, job_file=str(Path(self.job_file).absolute()), program=_PROGRAM)


UNKNOWN = CommandLine()
"""The command line in a process that does not know it."""


def command_on(target: str, command: str, *options: str, program: str = _PROGRAM) -> str:
    """Return a command on a job file, or on the folder of a run; quoted for the shell."""
    return f"{program} {command} {shlex.join([target, *options])}"


def typed(start: str, job_file: str, sets: Sequence[str] = ()) -> CommandLine:
    """Return the start of a run with the command line of this process."""
    return CommandLine(start, job_file, tuple(map(_shown, sets)), program=to_type(_PROGRAM))


def _shown(override: str) -> str:
    # Elsewhere than in a URI, "@" and "?" are ordinary characters, and the command has to work.
    is_secret = is_secret_key(override.partition("=")[0].rpartition(".")[2])
    return without_credentials(override) if is_secret or "://" in override else override


def to_type(program: str) -> str:
    """Return a program of this installation as a user types it.

    It is the path of the program if the shell would find another one.
    """
    beside = (Path(sys.executable), Path(sys.argv[0] or _PROGRAM))  # `pip install --user` separates them
    own = next((each for each in (path.with_name(program) for path in beside) if each.is_file()), None)
    found = shutil.which(program)
    if own is None or (found is not None and Path(found).samefile(own)):
        return program
    return shlex.quote(str(min(own, Path(os.path.relpath(own)), key=lambda path: len(str(path)))))
