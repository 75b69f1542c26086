"""Tells the fork server what a rank has imported: the next start of the rank has it from the beginning."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from clustertrain.worker.fork.client import NAME, ask


def preload_for_restart() -> None:
    """Have the fork server import, at idle priority, what this rank has imported up to its first step."""
    if NAME in os.environ:
        names = [name for name, module in sys.modules.items() if getattr(module, "__spec__", None)]
        with suppress(OSError):  # the next start imports more
            ask({"modules": names, "path": sys.path})
