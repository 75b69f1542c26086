"""Processes of a run that leave nothing behind: each under a guardian (guardian.py), in a private folder."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from clustertrain.node.signals import block_requests

_LOG_LINES = 6
_CLEANED_WITHIN_S = 30.0


class Guarded:
    """A command under a guardian; it and all that it starts end with `end()`, or with this process.

    `shielded`: signals that request an end are blocked in all of its processes. SLURM with
    proctrack/linuxproc sends TERM to every process of a step, and Ray's would end before the last save.
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
        log.touch()
        self.log = log
        reads, self._holds = os.pipe()  # the guardian ends when the other end of its input is closed
        self._alive, writes = os.pipe()  # it is at its end when no guardian is left
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "clustertrain.supervise.guardian", str(folder), str(log), *command],
            stdin=reads,
            stdout=writes,
            env=dict(environment),
            preexec_fn=block_requests if shielded else None,  # noqa: PLW1509  it calls one function of libc
        )
        os.close(reads)
        os.close(writes)
        self.fd = os.pidfd_open(self._process.pid)

    def code(self) -> int | None:
        """Return the command's exit code, or None while it runs.

        It is 128 + number after a signal, and negative if its guardian was killed.
        """
        return self._process.poll()

    def end(self) -> int:
        """Kill what still runs, wait for its end, and return the code.

        If the guardian was killed, the second one kills the rest.
        """
        if self.fd >= 0:
            os.close(self._holds)
        code = self._process.wait()
        if self.fd >= 0:
            select.select([self._alive], [], [], _CLEANED_WITHIN_S)
            os.close(self._alive)
            os.close(self.fd)
            self.fd = -1
        return code

    def how_it_ended(self) -> str:
        code = self._process.wait()
        if code < 0:
            return f"ended with its guardian, which was killed by signal {-code}"
        is_signal = 128 < code < 128 + signal.NSIG  # ssh and srun themselves end with 255
        return f"was killed by signal {code - 128}" if is_signal else f"ended with code {code}"

    def last_lines(self) -> str:
        """Return the end of its log, each line marked."""
        return "\n".join(f"  | {line}" for line in self.output()[-_LOG_LINES:])

    def output(self) -> list[str]:
        """Return the lines of its log."""
        return self.log.read_text(errors="replace").splitlines()
