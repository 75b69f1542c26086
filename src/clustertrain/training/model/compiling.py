"""torch.compile, and the compiler that it needs on a worker's node."""

from __future__ import annotations

import logging
import os
import shutil
import socket
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import torch
from torch import nn

from clustertrain.errors import ClusterError
from clustertrain.training.settings import Compile


def compiled(model: nn.Module, how: Compile, device: torch.device) -> nn.Module:
    """Return the model compiled with torch.compile; its parameters stay the same tensors.

    Raises:
        ClusterError: the node has no compiler. torch itself would fail in the first step.
    """
    check_compiler(device)
    return cast(nn.Module, torch.compile(model, **options_of(how)))


def options_of(how: Compile) -> dict[str, Any]:
    """Return the arguments of torch.compile.

    By default dynamic=False, one kernel per shape: otherwise the first short batch changes the kernels of all
    later ones, and a run resumed after it would differ in the last bits.
    """
    mode = None if how.mode == "default" else how.mode
    return {"dynamic": how.dynamic, "mode": mode}


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


def check_compiler(device: torch.device) -> None:
    """Check that the node has the compiler that torch.compile needs.

    On CPUs torch compiles C++; on GPUs Triton compiles the C code that starts its kernels.

    Raises:
        ClusterError: the node has no compiler for it.
    """
    language, variable, usual = ("C++", "CXX", ["g++"])
    if device.type == "cuda":
        language, variable, usual = ("C", "CC", ["gcc", "clang"])
    chosen = os.environ.get(variable)
    tried = [chosen] if chosen else usual
    if not any(shutil.which(each) for each in tried):
        which = f"{variable}={chosen}" if chosen else " or ".join(usual)
        raise ClusterError(
            f"train.compile is set, but torch.compile needs a {language} compiler, and "
            f"{socket.gethostname()} has none: {which} is not on the PATH.\n"
            f"Install {usual[0]}, set env: {{{variable}: …}} to another one, or set train.compile: false."
        )
