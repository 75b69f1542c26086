"""Commands that a test runs to their end."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

Done = subprocess.CompletedProcess[str]


def write_program(path: Path, body: str, interpreter: str = "/bin/sh") -> None:
    """A script that can be run."""
    path.write_text(f"#!{interpreter}\n{body}\n")
    path.chmod(0o755)


def ran(argv: Sequence[str | Path], *, code: int | None = None, **options: object) -> Done:
    """The end of a command, with what it printed as text.

    Args:
        code: the exit code that it must have; the failure shows what was printed.
        options: of subprocess.run.
    """
    given = {"text": True} if "input" in options else {"text": True, "stdin": subprocess.DEVNULL}
    done = subprocess.run(argv, capture_output=True, check=False, **given, **options)
    if code is not None and done.returncode != code:
        shown = " ".join(map(str, argv))
        raise AssertionError(f"{shown} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done
