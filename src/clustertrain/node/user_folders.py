"""The folders of this user on this node: the cache, and the runs that the user started."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

from clustertrain.errors import StorageError
from clustertrain.node import variables


def home_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return HOME or the folder in the user's entry; "/" for a uid without an entry, as in containers."""
    try:
        return Path(environ.get("HOME") or Path.home())
    except RuntimeError:
        return Path("/")


def cache_folder() -> Path:
    """Return the folder of the spool of streams and of the data sets that are staged once per node.

    It may be deleted between runs.
    """
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache).expanduser() if cache else home_folder() / ".cache") / "clustertrain"


def spool_base() -> Path:
    """Return the folder of the streams that are to be sent to S3.

    It is the folder of the process that sends them: the `env` of a job may give its workers another cache.
    """
    return Path(os.environ.get(variables.SPOOL) or cache_folder() / "spool")


def node_data_folder(scratch: str | None) -> Path:
    """Return the folder where this node keeps its copies of data.

    Args:
        scratch: a folder on a disk of the node, or the name of the variable that contains it; with None the
            data is in the cache.

    Raises:
        StorageError: the variable is not set here, or the folder cannot be used.
    """
    if scratch is None:
        return cache_folder() / "data"
    named = scratch if scratch.startswith("/") else os.environ.get(scratch, "")
    host = socket.gethostname()
    if not named.startswith("/"):
        raise StorageError(
            f"scratch is {scratch}, but on {host} that variable is "
            f"{f'{named!r}, not an absolute folder' if named else 'not set'}.\n"
            "Name another variable, or a folder that every node has."
        )
    own = Path(named, f"clustertrain-{os.getuid()}")  # the disk may be shared with other users
    try:
        own.mkdir(mode=0o700, exist_ok=True)
        owner = own.stat().st_uid
    except OSError as error:
        raise StorageError(
            f"{own} on {host} cannot be created: {error.strerror}.\nName a folder in which you may write."
        ) from error
    if owner != os.getuid():
        raise StorageError(
            f"{own} on {host} belongs to user {owner}, who could replace the data.\nName another folder."
        )
    return own / "data"


def known_runs_folder() -> Path:
    """Return the folder of the files of launchers/known_runs.py."""
    state = os.environ.get("XDG_STATE_HOME") or home_folder() / ".local" / "state"
    return Path(state, "clustertrain", "runs")
