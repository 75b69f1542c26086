"""torch.compile, and the compiler that it needs on a worker's node."""

from __future__ import annotations

import os
import shutil
import socket
from typing import cast

import torch
from torch import nn

from clustertrain.errors import ClusterError


def compiled(model: nn.Module, device: torch.device) -> nn.Module:
    """The model compiled with torch.compile; its parameters stay the same tensors.

    Raises:
        ClusterError: the node has no compiler. torch itself would fail in the first step.
    """
    check_compiler(device)
    # dynamic=False: one kernel per shape. Otherwise the first short batch changes the kernels of all later
    # ones, and a run resumed after it would differ in the last bits.
    return cast(nn.Module, torch.compile(model, dynamic=False))


def check_compiler(device: torch.device) -> None:
    """On CPUs torch compiles C++; on GPUs Triton compiles the C code that starts its kernels.

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
            f"train.compile is true, but torch.compile needs a {language} compiler, and "
            f"{socket.gethostname()} has none: {which} is not on the PATH.\n"
            f"Install {usual[0]}, set env: {{{variable}: …}} to another one, or set train.compile: false."
        )
