"""torch.compile: its arguments, and a note when a model has more shapes than it compiles."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

from clustertrain.training.settings import Compile


def options_of(how: Compile) -> dict[str, Any]:
    """Return the arguments of torch.compile.

    By default dynamic=False, one kernel per shape: otherwise the first short batch changes the kernels of all
    later ones, and a run resumed after it would differ in the last bits.
    """
    return {"dynamic": how.dynamic, "mode": how.mode}


def limit_recompiles(how: Compile | None, note: Callable[[str], None]) -> None:
    """Set how many shapes are compiled, and write a note when a model has more.

    torch itself writes a warning to the rank's log, and runs the model uncompiled for the rest of the
    process.
    """
    if how is None:
        return
    import torch._dynamo  # it takes a second

    torch._dynamo.config.recompile_limit = how.recompile_limit
    text = (
        f"torch.compile has compiled the model for {how.recompile_limit} shapes, its limit, and runs it "
        "uncompiled with others. Pad the batches to fewer lengths, or set train.compile: "
        "{recompile_limit: …} or {dynamic: true}"
    )
    note_once = cache(note)

    def look(record: logging.LogRecord) -> bool:
        if "recompile_limit" in record.getMessage():
            note_once(text)
        return True

    filters = logging.getLogger("torch._dynamo.convert_frame").filters
    filters[:] = [look]  # in place of that of an earlier run in this process
