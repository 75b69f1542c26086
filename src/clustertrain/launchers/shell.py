"""Runs the commands of a scheduler, and starts runs in the background; no other module does.

A command is a list of arguments, never a line for a shell. It has no terminal. `run` kills it at its timeout.
The error of a failed command contains its output. No argument contains a secret, because every user of the
machine can read the arguments.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from clustertrain.errors import ClusterError
from clustertrain.job.launcher_plugins import plugins
from clustertrain.node.signals import handled_signals
from clustertrain.node.units import shortened

_SHOWN_LINES = 2


@dataclass(frozen=True)
class Done:
    """A command that has ended. Its output is text, with � in place of bytes that are not UTF-8."""

    argv: tuple[str, ...]
    code: int
    stdout: str
    stderr: str


class CommandFailed(ClusterError):
    """A command ended with a nonzero exit code, or did not end by itself.

    With `code` None, it was killed at its timeout, or the system could not start it.
    """

    def __init__(
        self, argv: Sequence[str], code: int | None, stdout: str, stderr: str, how: str = ""
    ) -> None:
        how = how or f"ended with code {code}"
        printed_lines = [line.strip() for line in (stderr or stdout).splitlines() if line.strip()]
        text = "\n".join(printed_lines[-_SHOWN_LINES:]) or "It printed nothing."
        super().__init__(f"{argv[0]} {how}: {shortened(shlex.join(argv))}\n{text}")
        self.argv = tuple(argv)
        self.code = code
        self.stdout = stdout
        self.stderr = stderr
        self.how = how


class CommandMissing(ClusterError):
    """The program is not on PATH, or this user may not run it."""


class Unanswered(ClusterError):
    """The controller of a scheduler does not answer, or none is configured."""


def run(
    argv: Sequence[str],
    *,
    input: bytes | None = None,
    environ: Mapping[str, str] | None = None,
    timeout_s: float = 60,
    check: bool = True,
    stdout: BinaryIO | None = None,
) -> Done:
    """Run a command to its end.

    Args:
        input: its standard input, or None for an empty one.
        environ: its whole environment, with the PATH on which it is found, or None for that of this process.
        timeout_s: seconds after which the command is killed.
        check: whether a nonzero exit code is an error.
        stdout: a file for its standard output, which is then not in the result; for large binary output.

    Raises:
        CommandMissing: it is not on PATH; the message contains the remedy.
        CommandFailed: see that class.
    """
    try:
        done = subprocess.run(
            list(argv),
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            stdout=subprocess.PIPE if stdout is None else stdout,
            stderr=subprocess.PIPE,
            env=environ,
            timeout=timeout_s,
            check=False,
        )
    except OSError as error:
        raise _not_started(argv, error) from None
    except subprocess.TimeoutExpired as error:
        printed = _text(error.stdout), _text(error.stderr)
        raise CommandFailed(argv, None, *printed, f"did not end within {timeout_s:g} s") from None
    result = Done(tuple(argv), done.returncode, _text(done.stdout), _text(done.stderr))
    if check and done.returncode != 0:
        raise CommandFailed(argv, result.code, result.stdout, result.stderr)
    return result


def lines(argv: Sequence[str]) -> Iterator[str]:
    """Run a command and yield the lines of its output as they appear.

    When the iterator is closed, the command ends.

    Raises:
        CommandMissing: it is not on PATH; the message contains the remedy.
        CommandFailed: it ended with a nonzero exit code; raised after its last line.
    """
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
            )
        except OSError as error:
            raise _not_started(argv, error) from None
        with process:
            try:
                for line in process.stdout or ():
                    yield line.decode(errors="replace").rstrip("\r\n")
            except BaseException:  # including GeneratorExit: the caller closed the iterator
                process.terminate()
                raise
        errors.seek(0)
        if process.returncode != 0:
            raise CommandFailed(argv, process.returncode, "", _text(errors.read()))


def attached(argv: Sequence[str]) -> int:
    """Run a command with the input, output and terminal of this process, and return its exit code.

    Raises:
        CommandMissing, CommandFailed: it was not started.
    """
    try:
        is_ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN  # as in `exec ... &` of a script
        # Ctrl-C is for the command, such as a shell or a debugger.
        with handled_signals([] if is_ignored else [signal.SIGINT]):
            code = subprocess.run(list(argv), check=False).returncode
    except OSError as error:
        raise _not_started(argv, error) from None
    return code if code >= 0 else 128 - code  # as a shell says that a signal ended it


def start_in_background(argv: Sequence[str], output: Path, *, environ: Mapping[str, str]) -> int:
    """Start a command in a session of its own, which outlives this process and its terminal.

    Return its pid.

    Raises:
        CommandMissing, CommandFailed: as `run`.
    """
    start = 'setsid "$@" >>"$0" 2>&1 & echo $!'  # the shell ends, so the command is no child of this process
    return int(run(["sh", "-c", start, str(output), *argv], environ=environ).stdout)


def _not_started(argv: Sequence[str], error: OSError) -> CommandMissing | CommandFailed:
    if not isinstance(error, FileNotFoundError | NotADirectoryError | PermissionError):
        return CommandFailed(argv, None, "", "", f"cannot be started ({error.strerror})")
    program = argv[0]
    known = [each.remedies[program] for each in plugins().values() if program in each.remedies]
    remedy = known[0] if known else "Install it, or add its folder to PATH."
    what = "may not be run" if isinstance(error, PermissionError) else "is not on PATH"
    return CommandMissing(f"{program} {what} on this machine.\n{remedy}")


def _text(printed: bytes | None) -> str:
    return (printed or b"").decode(errors="replace")
