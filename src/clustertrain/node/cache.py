"""The cache folder of this user on this node."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Holds the spool of streams and the data sets that are staged once per node. It may be deleted between
    runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "clustertrain"
