"""The Python of a script's own environment: `interpreter`."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from clustertrain.errors import JobError


def interpreter_file(interpreter: str) -> Path:
    """Return the program of an interpreter here: the path itself, or bin/python of a virtual environment.

    A link is not followed: its own path shows Python which environment it belongs to.

    Raises:
        JobError: it does not exist here or cannot be executed.
    """
    path = Path(interpreter)
    if os.path.isdir(path):  # of pathlib, Python 3.11 raises where a folder may not be read
        path = path / "bin" / "python"
    on_host = f"on {socket.gethostname()}"
    if os.path.lexists(path) and not os.path.exists(path):
        raise JobError(
            f"interpreter: {path} is a link to {path.readlink()}, which does not exist {on_host}.\n"
            "A virtual environment needs the Python that it was created with, at the same path."
        )
    if not os.path.isfile(path):
        raise JobError(
            f"interpreter: {path} does not exist {on_host}, or uid {os.geteuid()} may not see it.\n"
            "Give the path of a Python, or the folder of a virtual environment, as it is where the job runs."
        )
    if not os.access(path, os.X_OK):
        raise JobError(f"interpreter: {path} is not executable {on_host}.\nGive the path of a Python.")
    return path
