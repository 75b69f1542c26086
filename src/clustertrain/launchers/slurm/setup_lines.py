"""Checks the lines of slurm.setup with bash before the job is submitted. None of them is executed."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from clustertrain.errors import ClusterError, JobError
from clustertrain.launchers.shell import Done, run

_ANSWER_S = 10.0
# A here-document without an end is only a warning; on the node it hides all that follows.
_WRONG = re.compile(r"^\S+: line (\d+): (.*(?:syntax error|unexpected EOF|here-document).*)$", re.MULTILINE)


def check_setup(lines: Sequence[str]) -> None:
    """Let bash parse the lines; nothing is checked where there is no bash.

    Raises:
        JobError: they are not valid shell; the message has the line and the words of bash.
    """
    if not lines:
        return
    try:
        wrong = _wrong(_parsed(lines))
        # A line may turn on extended patterns for those below it; `bash -n` does not execute that line.
        if wrong is None or _wrong(_parsed(lines, "-O", "extglob")) is None:
            return
    except ClusterError:
        return
    number, words = wrong
    if number > len(lines):
        raise JobError(
            f"slurm.setup: its {len(lines)} lines are not complete; bash: {words}\n"
            "Close each quote, bracket, if, for and here-document within slurm.setup."
        )
    raise JobError(
        f"slurm.setup: line {number} is {lines[number - 1]}\nbash: {words}\n"
        "Correct the line, or quote what the shell must not interpret."
    )


def _parsed(lines: Sequence[str], *options: str) -> Done:
    # Only for a file, and not for its standard input, bash prints the numbers of the lines.
    argv = ["bash", *options, "-n", "/dev/stdin"]
    environ = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
    text = "\n".join([*lines, ""]).encode()
    return run(argv, input=text, environ=environ, timeout_s=_ANSWER_S, check=False)


def _wrong(done: Done) -> tuple[int, str] | None:
    """The line and the words of the first error, or None."""
    found = _WRONG.search(done.stderr)
    return (int(found[1]), found[2]) if found is not None else None
