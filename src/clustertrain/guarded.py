"""Processes of a run that leave nothing behind: each under a guardian (guardian.py), in a private folder."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from clustertrain.processes import is_gone, is_here, this_process
from clustertrain.result import Result, ended, read_result, write_result
from clustertrain.run_dir import Attempt, AttemptRef

REQUESTS_TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_LOG_LINES = 6
_PREFIX, _OWNER = "ct-", "owner"


@contextmanager
def signals_heard(heard: Callable[[int, FrameType | None], None], numbers: Sequence[int]) -> Iterator[None]:
    """These signals are handed to `heard`, and within the block to nobody else."""
    before = {number: signal.signal(number, heard) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def private_folder() -> Path:
    """A new folder, 0700, for Ray; short, since a socket's path has 107 bytes and Ray adds 70 to this one.

    Removes those that killed processes of this user have left.
    """
    base = tempfile.gettempdir()
    base = base if len(base) <= 24 else "/tmp"
    _remove_left_behind(Path(base))
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
    (folder / _OWNER).write_text(json.dumps(this_process()))
    return folder


def _remove_left_behind(base: Path) -> None:
    for folder in base.glob(f"{_PREFIX}*"):
        with suppress(OSError, ValueError, KeyError):  # another user's, or no folder of ours
            if folder.lstat().st_uid == os.getuid() and _is_left(json.loads((folder / _OWNER).read_text())):
                remove(folder)


def _is_left(owner: dict[str, Any]) -> bool:
    return is_here(owner) and is_gone(owner)


def write_token(folder: Path, token: str | None = None) -> Path:
    """A token for this run alone, readable by its user alone, passed on by its path; random unless given."""
    path = folder / "token"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(token or secrets.token_hex(32))
    return path


class Guarded:
    """A command and all that it starts; it ends when it is told to, and when this process dies.

    `shielded`: signals that ask for an end reach none of its processes. A scheduler sends TERM to every
    process of a step (SLURM with proctrack/linuxproc does), and Ray's would leave before the last save.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        folder: Path,
        environment: Mapping[str, str],
        *,
        shielded: bool = False,
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        self._process = subprocess.Popen(
            [sys.executable, "-m", "clustertrain.guardian", str(folder), str(log), *command],
            stdin=subprocess.PIPE,
            env=dict(environment),
            preexec_fn=_block_requests if shielded else None,  # noqa: PLW1509  it calls one function of libc
        )
        self.fd = os.pidfd_open(self._process.pid)

    def code(self) -> int | None:
        """The command's exit code, 128 + number after a signal, negative where its guardian was killed; None
        while it runs."""
        return self._process.poll()

    def end(self) -> int:
        """Kill what still runs; returns the code when nothing does."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        code = self._process.wait()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        return code

    def how_it_ended(self) -> str:
        code = self._process.returncode
        if code < 0:
            return f"went with its guardian, which was killed by signal {-code}"
        return f"was killed by signal {code - 128}" if code > 128 else f"ended with code {code}"

    def last_lines(self) -> str:
        """The end of its log, each line marked."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        except FileNotFoundError:
            lines = []
        return "\n".join(f"  | {line}" for line in lines)


def _block_requests() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, REQUESTS_TO_END)


def start_driver(
    attempt: Attempt, folder: Path, environment: Mapping[str, str], *, shielded: bool = False
) -> Guarded:
    """The driver of an attempt; `folder` is removed when it has ended."""
    command = [sys.executable, "-m", "clustertrain.driver", AttemptRef.of(attempt).to_text()]
    return Guarded(command, attempt.driver_log, folder, environment, shielded=shielded)


def result_of(attempt: Attempt, driver: Guarded) -> Result:
    """What the driver wrote; where it died without a word, that."""
    result = read_result(attempt)
    if result is not None:
        return result
    text = f"The driver {driver.how_it_ended()} before it could say why. The end of {driver.log}:\n"
    return write_result(attempt, ended(attempt, "failed", "driver_died", text=text + driver.last_lines()))


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
