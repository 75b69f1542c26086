"""Tells the fork server what a rank has imported: the next start of the rank has it from the beginning."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from clustertrain.worker.fork.client import NAME, ask


def preload_for_restart() -> None:
    """Have the fork server import, at idle priority, what this rank has imported up to its first step."""
    if NAME in os.environ:
        modules = [*sys.modules.items()]  # the training may import more meanwhile
        names = [name for name, module in modules if getattr(module, "__spec__", None)]
        with suppress(OSError):  # the next start imports more
            ask({"modules": names, "path": sys.path})
