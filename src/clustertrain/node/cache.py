"""The folder of what this user keeps on this node and can do without."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """What this user keeps on this node and can do without: the spool, and data that came once per node."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "clustertrain"
