"""The fork server of a node: Ray's worker processes are forks of it, so that each import is done once.

    this process          has imported torch; hands each request to the server of its Ray job
    a server of a job     has imported Ray and Ray Train with the variables of that job, which Ray reads once
    its successor         has also imported what a rank had imported at its first step: the user's code
    a worker              a fork of the newest of these

All of them have one thread when they fork, and none has used a GPU.
"""

from __future__ import annotations

import gc
import json
import os
import random
import re
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from runpy import run_path
from typing import Any

from clustertrain.driver import ray_internals
from clustertrain.waiting import wait_until
from clustertrain.worker.fork.ends import note_ends

_TORCH = (
    *("torch", "torch._dynamo", "torch.distributed", "clustertrain.worker.forked_rank"),
    "clustertrain.driver.group.start",  # whose functions the ranks are asked to call
)
_RAY = ("ray.train.torch", "clustertrain.driver.backend")
_OF_JOB = ("RAY_JOB_ID", "RAY_RAYLET_PID")
# What a process reads when it starts, or when it loads a library: a fork has the values of the server.
_READ_ONCE = re.compile(
    r"(PYTORCH|LD|LC|MALLOC|GLIBC|OMP|KMP|GOMP|MKL|OPENBLAS|ATEN|KINETO|NPY|TQDM)_.*|LANG|TZ|PYTHONHASHSEED|"
    r"TORCH(?!ELASTIC_|INDUCTOR_CACHE_DIR$).*"
)
_OF_RANK = {"RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
_MOST_BYTES = 2**18  # of a request: a socket takes less
_MOST_FILES = 5  # with it: the connection, three streams, and the second channel of a rank without Ray
_RECEIVED_WITHIN_S = 5.0
_THREAD_ENDS_WITHIN_S = 1.0
_ACCEPTED = b"1"
_SURVIVES_FORK = ("jemalloc_bg_thd",)  # of pyarrow: it is started again in a fork


@dataclass(frozen=True)
class Request:
    """What to start or import.

    Attributes:
        modules: to import for the next workers.
        place: of a rank without Ray, the fields of a Place.
    """

    environment: dict[str, str]
    folder: str
    arguments: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    path: list[str] = field(default_factory=list)
    place: dict[str, Any] = field(default_factory=dict)

    @property
    def job(self) -> tuple[str, ...]:
        return tuple(self.environment.get(name, "") for name in _OF_JOB)


class _Forked(BaseException):
    """Leaves the loop of a server in a process that was forked there, and runs something else in it."""

    def __init__(self, run: Callable[[], None]) -> None:
        self.run = run


def import_torch() -> None:
    for name in _TORCH:
        import_module(name)


def main(fd: int) -> None:
    """Import torch, and hand on requests until the process that has started this one ends."""
    listens, servers = socket.socket(fileno=fd), dict[tuple[str, ...], socket.socket]()
    import_torch()
    _prepare_to_fork()
    with listens:
        while sys.stdin not in select.select([listens, sys.stdin], [], [])[0]:
            connection, _ = listens.accept()
            with connection, suppress(OSError, ValueError, TypeError):  # the worker imports everything itself
                _hand_on(connection, servers)


def _hand_on(connection: socket.socket, servers: dict[tuple[str, ...], socket.socket]) -> None:
    connection.settimeout(_RECEIVED_WITHIN_S)
    message, files = _received(connection)
    try:
        request = Request(**json.loads(message))
        if request.job not in servers or select.select([servers[request.job]], [], [], 0)[0]:  # was killed
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            if os.fork() == 0:
                ours.close()
                raise _Forked(partial(_serve_job, request, theirs))
            theirs.close()
            servers[request.job] = ours
        socket.send_fds(servers[request.job], [message], [connection.fileno(), *files])
    finally:
        _close(files)


def _prepare_to_fork() -> None:
    gc.collect()
    gc.freeze()  # a search for cycles would copy every page
    note_ends()


def _received(channel: socket.socket) -> tuple[bytes, list[int]]:
    message, files, _, _ = socket.recv_fds(channel, _MOST_BYTES, _MOST_FILES)
    return message, files


def _close(files: list[int]) -> None:
    for file in files:
        os.close(file)


def _serve_job(first: Request, channel: socket.socket) -> None:
    os.environ.update(first.environment)
    if not first.place:
        ray_internals.draw_class_ids_from_system()
        for name in _RAY:
            import_module(name)
        _ = ray_internals.parser, ray_internals.RuntimeEnvContext, ray_internals.update_envs
    if reasons := _unfit_to_fork():
        print(f"clustertrain: the workers cannot be forks: {' and '.join(reasons)}", flush=True)
        message, files = _received(channel)
        while message:
            _close(files)  # the worker imports everything itself
            message, files = _received(channel)
        return
    which = "torch" if first.place else "torch, Ray and Ray Train"
    print(f"clustertrain: workers are forks of a process with {which}", flush=True)
    states = RandomStates.now()
    _serve(channel, before=states, after=states)


def _serve(channel: socket.socket, before: RandomStates, after: RandomStates) -> None:
    """Fork a worker for each request until the channel ends, except while a successor does it.

    Args:
        before, after: the random states without and with the user's modules.
    """
    _prepare_to_fork()
    successors: list[tuple[int, int]] = []
    while True:
        if channel.fileno() not in select.select([channel.fileno(), *dict(successors)], [], [])[0]:
            ready, successor = successors.pop()
            if os.read(ready, 1):
                _reap(channel, successor)
            _close([ready, successor])
            continue
        message, files = _received(channel)
        if not message:
            return
        request, connection = Request(**json.loads(message)), socket.socket(fileno=files.pop(0))
        with connection:
            try:
                connection.send(_ACCEPTED)
            except OSError:  # this process had to import for so long that the worker does it itself
                _close(files)
                continue
        if not request.modules:
            if os.fork() == 0:
                raise _Forked(partial(_become_worker, request, files, before, after))
        elif not successors and not sys.modules.keys() >= set(request.modules):
            reads, writes = os.pipe()
            if (pid := os.fork()) == 0:
                raise _Forked(partial(_succeed, request, channel, writes, before, after))
            successors.append((reads, os.pidfd_open(pid)))
            os.close(writes)
        _close(files)


def _reap(channel: socket.socket, successor: int) -> None:
    """Stay the parent of this process's forks, and note how they end. This process ends with the channel; it
    serves again if the kernel has killed the successor for memory."""
    ends = select.poll()
    ends.register(channel, 0)
    ends.register(successor, select.POLLIN)
    ends.poll()


def _succeed(
    request: Request, channel: socket.socket, ready: int, before: RandomStates, after: RandomStates
) -> None:
    random.setstate(after.python)
    if not _imported(request):
        os._exit(0)  # at a normal exit, Python would wait for threads of the modules
    print(f"clustertrain: the next start of a rank has {len(sys.modules)} modules imported", flush=True)
    os.write(ready, _ACCEPTED)
    os.close(ready)
    _serve(channel, before, RandomStates.now())


def _imported(request: Request) -> bool:
    """Import modules at idle priority. Returns whether this process can still be forked, for any rank.

    A module that reads the variables of a rank when it is imported would have the values of no rank.
    """
    read: set[str] = set()
    plain = os._Environ.__getitem__

    def noting(environment: Any, name: str) -> str:
        read.add(name)
        return str(plain(environment, name))

    def load() -> None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # of this thread
        for name in request.modules:
            with suppress(Exception):  # the worker meets the same error
                import_module(name)

    os.environ.clear()
    os.environ.update({name: value for name, value in request.environment.items() if name not in _OF_RANK})
    os.chdir(request.folder)
    sys.path[:] = request.path
    os._Environ.__getitem__ = noting  # type: ignore[method-assign,assignment]  # as every reader calls it
    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    os._Environ.__getitem__ = plain  # type: ignore[method-assign]  # as above
    reasons = _unfit_to_fork()
    if read & _OF_RANK:
        reasons.append(f"it reads {', '.join(sorted(read & _OF_RANK))}")
    if not wait_until(_has_one_thread, _THREAD_ENDS_WITHIN_S, 0.01):
        reasons.append("it starts a thread")
    if reasons:
        text = f"when it is imported, {' and '.join(reasons)}"
        print(f"clustertrain: each rank imports the code itself: {text}", file=sys.stderr, flush=True)
    return not reasons


def _unfit_to_fork() -> list[str]:
    """Why two forks of this process would not be as two processes."""
    import torch

    reads, writes = os.pipe()
    for _ in range(2):
        if os.fork() == 0:
            os.write(writes, bytes([torch.cuda._is_in_bad_fork()]) + _drawn_id())
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as file:
        found = file.read()
    first, second = found[: len(found) // 2], found[len(found) // 2 :]
    why = {"it has asked CUDA for its devices": first[:1] != b"\0", "it draws ids of Ray's": first == second}
    return [text for text, is_true in why.items() if is_true]


def _drawn_id() -> bytes:
    """An id of Ray's, or of the system without Ray."""
    if "ray" not in sys.modules:
        return os.urandom(8)
    from ray import ObjectRef

    return bytes(ObjectRef.from_random().binary())


def _has_one_thread() -> bool:
    names = [task.joinpath("comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    return len([name for name in names if name not in _SURVIVES_FORK]) == 1


@dataclass(frozen=True)
class RandomStates:
    """The random states of Python, numpy and torch. A fork draws numbers of its own unless a module has set
    the seed when it was imported."""

    python: Any
    numpy: Any
    torch: Any

    @classmethod
    def now(cls) -> RandomStates:
        import numpy
        import torch

        return cls(random.getstate(), numpy.random.get_state()[1:3], torch.get_rng_state())  # type: ignore[index]

    def renew_since(self, before: RandomStates) -> None:
        import numpy
        import torch

        if self.python != before.python:  # Python itself renews it in a fork
            random.setstate(self.python)
        (key, position), (key_before, position_before) = self.numpy, before.numpy
        if position == position_before and (key == key_before).all():
            numpy.random.seed()
        if self.torch.equal(before.torch):
            torch.default_generator.seed()


def _read_once() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if _READ_ONCE.fullmatch(name)}


def _become_worker(request: Request, files: list[int], before: RandomStates, after: RandomStates) -> None:
    """Become a rank without Ray, or do what Ray's setup_worker.py does in a new process; it ends with the
    worker."""
    streams, others = files[:3], files[3:]
    for target, file in enumerate(streams):
        os.dup2(file, target)
    _close(streams)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.chdir(request.folder)
    read_once = _read_once()  # as at the start of this process
    os.environ.clear()
    os.environ.update({**read_once, **request.environment})
    if request.place:
        after.renew_since(before)
        import_module("clustertrain.worker.forked_rank").main(request.place, *others)  # it does not return
    arguments, remaining = ray_internals.parser.parse_known_args(request.arguments)
    context = ray_internals.RuntimeEnvContext.deserialize(arguments.serialized_runtime_env_context or "{}")
    ray_internals.update_envs(context.env_vars)
    if read_once != _read_once() or context.command_prefix or context.py_executable != sys.executable:
        context.exec_worker(remaining, ray_internals.Language.Value(arguments.language))
    after.renew_since(before)
    sys.argv = remaining
    sys.path[:] = [str(Path(remaining[0]).parent), *sys.path]
    run_path(remaining[0], run_name="__main__")


def serve(fd: int) -> None:
    """Be the fork server, and in a fork of it the worker. `fd`: the socket on which it listens."""
    run: Callable[[], None] | None = partial(main, fd)
    while run is not None:
        try:
            run = run()
        except _Forked as forked:
            run = forked.run


if __name__ == "__main__":
    serve(int(sys.argv[1]))
