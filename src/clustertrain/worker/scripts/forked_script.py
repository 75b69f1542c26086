"""A script's process that is a fork of the node's fork server, which has imported torch.

    rank ──socket──▶ keeper ──▶ script          both are forks of the server, which has nothing of Ray

A process learns only of its own children how they have ended, so the keeper is the script's parent: it passes
on the rank's signals, reports the end, and ends with the rank, and the script with it.
"""

from __future__ import annotations

import ctypes
import io
import os
import re
import select
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from clustertrain.worker.fork.client import ask
from clustertrain.worker.machine.gc_tuning import collect_as_usual
from clustertrain.worker.machine.gpu_affinity import configure_allocator
from clustertrain.worker.machine.heap import keep_freed_memory
from clustertrain.worker.scripts.main_program import exit_after, run_as_main
from clustertrain.worker.scripts.process_group_end import let_gloo_finish_first

READ_ONCE = (
    r"TORCH(?!ELASTIC_|INDUCTOR_CACHE_DIR$).*|LANG|TZ|"
    r"(LD|LC|MALLOC|GLIBC|OMP|KMP|GOMP|MKL|OPENBLAS|ATEN|KINETO|NPY|TQDM)_.*"
)
"""What the C library, torch, numpy and tqdm, which torch imports, read once, and cannot be told later."""
_READ_ONCE = re.compile(
    rf"{READ_ONCE}|TMPDIR|PYTORCH_(?!ALLOC_CONF$).*|PYTHON(?!(PATH|UNBUFFERED|BREAKPOINT)$).*"
)
# What Python and the C library read when a process starts. The driver, whose forks these are, sets it later.
_READ_AT_START = re.compile(r"TZ|(MALLOC|GLIBC)_.*|PYTHON(?!(PATH|UNBUFFERED|BREAKPOINT)$).*")
_CHANNEL = 3  # the descriptor of the keeper's socket
_MOST_BYTES = 4096  # of an answer


@dataclass(frozen=True)
class ScriptStart:
    """What a script's process has from its start. `arguments`: Python's."""

    arguments: list[str]
    environment: dict[str, str]
    folder: str
    cpus: list[int]

    def differs(self) -> str:
        """Why the script would not run in a fork of this process as in a process of its own, or empty."""
        import torch

        now, own, began = os.environ, self.environment, _environment_at_start()
        names = {name for name, _ in now.items() ^ own.items() if _READ_ONCE.fullmatch(name)}
        names |= {name for name, _ in began.items() ^ own.items() if _READ_AT_START.fullmatch(name)}
        if names:
            return f"the fork server has another {', '.join(sorted(names))}"
        of_script = [] if self.arguments[0] == "-m" else [str(Path(self.arguments[0]).resolve().parent)]
        added = {*of_script, *_paths(own)} - {*_paths(now)}
        files = {each.stem for path in added if Path(path).is_dir() for each in Path(path).iterdir()}
        imported = {name.partition(".")[0] for name in sys.modules} - {"__main__"}
        if names := files & (imported | {"sitecustomize", "usercustomize"}):
            return f"the code has a module with the name of one that is imported: {', '.join(sorted(names))}"
        return "it has asked CUDA for its devices" if torch.cuda._is_in_bad_fork() else ""


def _environment_at_start() -> dict[str, str]:
    """The variables with which this process, or the one that it is a fork of, was executed."""
    lines = os.fsdecode(Path("/proc/self/environ").read_bytes()).split("\0")
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def _paths(environment: Mapping[str, str]) -> list[str]:
    return list(filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)))


class ForkedScript:
    """The process of a script, with the methods of subprocess.Popen that script.py calls."""

    def __init__(self, start: ScriptStart) -> None:
        """
        Raises:
            OSError: there is no fork server, or the script needs a process of its own; the text says why.
        """
        self._keeper, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reads, writes = os.pipe()
        self.stdout = os.fdopen(reads, "rb", buffering=0)
        try:
            with theirs, os.fdopen(writes, "wb"):
                ask({"script": asdict(start)}, files=(theirs.fileno(), writes))
            answer = self._keeper.recv(_MOST_BYTES).decode()
            if not answer.isdigit():
                raise ConnectionError(answer)
        except OSError:
            self.__exit__()
            raise
        self.pid = int(answer)

    def __enter__(self) -> ForkedScript:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stdout.close()
        self._keeper.close()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Returns its exit code, negative after a signal.

        Raises:
            TimeoutError: it runs for longer.
        """
        if not select.select([self._keeper], [], [], timeout)[0]:
            raise TimeoutError
        code = self._keeper.recv(_MOST_BYTES, socket.MSG_PEEK)  # several threads wait
        return int(code) if code else -signal.SIGKILL  # the keeper was killed, and the script with it

    def send_signal(self, number: int) -> None:
        with suppress(OSError):  # it has ended
            self._keeper.send(bytes([number]))


def keep(script: Mapping[str, Any], files: list[int]) -> None:
    """Be the keeper of a script in this fork of the fork server, and end with it.

    Args:
        script: the fields of a ScriptStart.
        files: the channel to the rank, and the script's output.
    """
    channel, output = files
    for target, file in enumerate((os.open(os.devnull, os.O_RDONLY), output, output, channel)):
        os.dup2(file, target)
    for file in [int(each.name) for each in Path("/proc/self/fd").iterdir()]:
        if file > _CHANNEL:
            with suppress(OSError):  # of the listing
                os.close(file)
    rank = socket.socket(fileno=_CHANNEL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    start = ScriptStart(**script)
    if why := start.differs():
        rank.send(why.encode()[:_MOST_BYTES])
        os._exit(0)
    keeper = os.getpid()
    if (pid := os.fork()) == 0:
        rank.close()
        _become(start, keeper)
    process = os.pidfd_open(pid)
    rank.send(str(pid).encode())
    while process not in select.select([process, _CHANNEL], [], [])[0]:
        if not (number := rank.recv(1)):
            os._exit(0)
        os.kill(pid, number[0])
    rank.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
    os._exit(0)


def _become(start: ScriptStart, keeper: int) -> None:
    """Run the script in this process as Python would in a new one."""
    import numpy
    import torch

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != keeper:  # it had ended before
        os._exit(1)
    os.setsid()
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            own = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, own)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.sched_setaffinity(0, start.cpus)
    os.chdir(start.folder)
    os.environ.clear()
    os.environ.update(start.environment)
    # Before the standard library, which begins with its archive, are the folders of the server.
    standard = sys.path.index(str(Path(os.__file__).parent)) - 1
    sys.path[:] = [*_paths(start.environment), *sys.path[standard:]]
    sys.orig_argv[:] = [sys.executable, "-u", *start.arguments]
    sys.stdout, sys.stderr = _unbuffered(sys.stdout, 1), _unbuffered(sys.stderr, 2)
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc,assignment]  # as in a new process
    numpy.random.seed()
    torch.default_generator.seed()
    configure_allocator()
    collect_as_usual()
    keep_freed_memory()
    let_gloo_finish_first()
    exit_after(partial(run_as_main, start.arguments))


def _unbuffered(stream: TextIO, fd: int) -> TextIO:
    """As with `python -u`."""
    raw = io.FileIO(fd, "w", closefd=False)
    return io.TextIOWrapper(raw, stream.encoding, stream.errors, newline="\n", write_through=True)
