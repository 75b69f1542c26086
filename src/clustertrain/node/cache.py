"""The folders of this user on this node: the cache, and the runs that the user started."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def cache_folder() -> Path:
    """Holds the spool of streams and the data sets that are staged once per node. It may be deleted between
    runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "clustertrain"


def known_runs_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Holds the files of launchers/known_runs.py."""
    state = environ.get("XDG_STATE_HOME") or Path(environ.get("HOME") or Path.home(), ".local", "state")
    return Path(state, "clustertrain", "runs")
