"""The fork server of a node: the ranks of tasks and functions are forks of it, so torch is imported once.

The server has one thread, and has imported torch, and Ray Train as soon as a worker of Ray is requested. The
user's code is imported by each rank.
"""

from __future__ import annotations

import gc
import json
import os
import re
import select
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from runpy import run_path
from typing import Any

from clustertrain.driver import ray_internals
from clustertrain.worker.fork.ends import note_ends

_TORCH = (
    *("torch", "torch._dynamo", "torch.distributed", "clustertrain.worker.forked_rank"),
    "clustertrain.driver.group.start",  # whose functions the ranks are asked to call
)
_RAY = ("ray.train.torch", "ray.tune", "clustertrain.driver.backend")  # a worker imports both
_OF_WORKER = ("parser", "RuntimeEnvContext", "update_envs", "Language")
# What a process reads when it starts, or when it loads a library: a fork has the values of the server.
_READ_ONCE = re.compile(
    r"(PYTORCH|LD|LC|MALLOC|GLIBC|OMP|KMP|GOMP|MKL|OPENBLAS|ATEN|KINETO|NPY|TQDM)_.*|LANG|TZ|PYTHONHASHSEED|"
    r"RAY_.*|TORCH(?!ELASTIC_|INDUCTOR_CACHE_DIR$).*"
)
_MOST_BYTES = 2**18  # of a request: a socket takes less
_MOST_FILES = 4  # with it: three streams, and the second channel of a rank without Ray
_RECEIVED_WITHIN_S = 5.0
_ACCEPTED = b"1"


@dataclass(frozen=True)
class RankRequest:
    """The rank to start.

    Attributes:
        arguments: of Ray's setup_worker.py.
        place: of a rank without Ray, the fields of a Place.
    """

    environment: dict[str, str]
    folder: str
    arguments: list[str] = field(default_factory=list)
    place: dict[str, Any] = field(default_factory=dict)


def serve(fd: int) -> None:
    """Serve as the fork server, and in a fork of it as the rank. `fd`: the socket on which it listens."""
    import_torch()
    with socket.socket(fileno=fd) as listens:
        rank = _next_rank(listens)
    if rank is not None:
        rank()


def import_torch() -> None:
    for name in _TORCH:
        import_module(name)


def _next_rank(listens: socket.socket) -> Callable[[], None] | None:
    """Fork for each request until the process that has started this one ends.

    Each fork gets the function that it has to run; the server gets None at the end.
    """
    gc.collect()
    gc.freeze()  # a search for cycles would copy every page
    note_ends()
    while sys.stdin not in select.select([listens, sys.stdin], [], [])[0]:
        connection, _ = listens.accept()
        with connection, suppress(OSError, ValueError):  # the worker imports everything itself
            connection.settimeout(_RECEIVED_WITHIN_S)
            message, files, _, _ = socket.recv_fds(connection, _MOST_BYTES, _MOST_FILES)
            try:
                request = RankRequest(**json.loads(message))
                if not request.place:
                    _import_ray_train(request.environment)
                connection.send(_ACCEPTED)
                if os.fork() == 0:
                    return partial(_become_rank, request, [os.dup(file) for file in files])
            finally:
                for file in files:
                    os.close(file)
    return None


def _import_ray_train(environment: dict[str, str]) -> None:
    """Import it if that has not been done, with the variables of a worker, some of which Ray reads once."""
    if "ray" in sys.modules:
        return
    os.environ.update(environment)
    ray_internals.draw_class_ids_from_system()
    for name in _RAY:
        import_module(name)
    for name in _OF_WORKER:  # a Ray without it ends this server, and the worker imports everything itself
        getattr(ray_internals, name)
    gc.collect()
    gc.freeze()
    print("clustertrain: workers are forks of a process with torch, Ray and Ray Train", flush=True)


def _become_rank(request: RankRequest, files: list[int]) -> None:
    """Become a rank without Ray, or do what Ray's setup_worker.py does in a new process.

    The process ends with the worker.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    streams, others = files[:3], files[3:]
    for target, file in enumerate(streams):
        os.dup2(file, target)
        os.close(file)
    os.chdir(request.folder)
    read_once = _read_once()
    os.environ.clear()
    os.environ.update({**read_once, **request.environment})
    _draw_own_numbers()
    if request.place:
        import_module("clustertrain.worker.forked_rank").main(request.place, *others)  # it does not return
    arguments, remaining = ray_internals.parser.parse_known_args(request.arguments)
    context = ray_internals.RuntimeEnvContext.deserialize(arguments.serialized_runtime_env_context or "{}")
    ray_internals.update_envs(context.env_vars)
    if read_once != _read_once() or context.command_prefix or context.py_executable != sys.executable:
        context.exec_worker(remaining, ray_internals.Language.Value(arguments.language))
    sys.argv = remaining
    sys.path[:] = [str(Path(remaining[0]).parent), *sys.path]
    run_path(remaining[0], run_name="__main__")


def _read_once() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if _READ_ONCE.fullmatch(name)}


def _draw_own_numbers() -> None:
    """Renew the random states of numpy and torch, which forks have in common; Python renews its own."""
    import numpy
    import torch

    numpy.random.seed()
    torch.default_generator.seed()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
