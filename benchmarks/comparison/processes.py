"""Starts the programs that are measured, measures their memory, and ends all that they started."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from clustertrain.supervise.guardian import become_subreaper, descendants, kill_descendants

PATIENCE_S = 300.0
_NOT_FOR_A_PROGRAM = ("CLUSTERTRAIN_", "MASTER_", "OMP_", "PYTHONPATH", "RANK", "RAY_", "WORLD_SIZE")


class Failed(Exception):
    """A program ended with an error, or not in time. The text is the last error in its output."""


def environment(home: Path) -> dict[str, str]:
    """This process's environment without settings for the programs. They write into a folder of the bench."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_FOR_A_PROGRAM)}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    folders = dict.fromkeys(("HOME", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"), str(home))
    return {**kept, **folders, "PATH": path, "OMP_NUM_THREADS": "1"}


@contextmanager
def running(argv: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The program, started in the folder, with its output in the file `output`. At the end nothing that it
    started is left, not even what has become an orphan."""
    become_subreaper()
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            argv,
            cwd=folder,
            env=environment(folder.parent),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        kill_descendants()


def wait_for(
    process: subprocess.Popen[bytes],
    folder: Path,
    done: Callable[[], bool],
    poll_s: float,
    patience_s: float = PATIENCE_S,
) -> None:
    """Waits until `done`.

    Raises:
        Failed: the program ended with an error before, or it took too long.
    """
    ends = time.monotonic() + patience_s
    while not done():
        if process.poll() or time.monotonic() > ends:
            code = "no end" if process.poll() is None else f"code {process.returncode}"
            raise Failed(f"{code}: {last_error((folder / 'output').read_text(errors='replace'))}")
        time.sleep(poll_s)


def last_error(output: str) -> str:
    """The last line that names an error, otherwise the last line."""
    lines = output.strip().splitlines() or [""]
    return next(
        (line for line in reversed(lines) if re.search(r"(error|exception): ", line, re.I)), lines[-1]
    )


@dataclass(frozen=True)
class Measured:
    """The wall seconds of one process, and its largest resident set in bytes."""

    wall_s: float
    rss_bytes: int


def run(argv: list[str]) -> Measured:
    """One process from its start to its end.

    Raises:
        Failed: it ended with another code than 0.
    """
    began = time.perf_counter()
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
    _, code, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(code)
    if process.returncode:
        raise Failed(f"{argv[0]} ended with {process.returncode}")
    return Measured(wall_s, usage.ru_maxrss << 10)


class MemoryWatch:
    """The largest PSS of all descendants of this process together while it watches."""

    def __init__(self, every_s: float = 0.5) -> None:
        self.peak_bytes, self._every_s, self._done = 0, every_s, threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(self._every_s):
            self.peak_bytes = max(self.peak_bytes, sum(map(pss_bytes, descendants(os.getpid()))))


def pss_bytes(pid: int) -> int:
    """The proportional set size of a process. 0 if it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return 1024 * int(line.split()[1])
    return 0
