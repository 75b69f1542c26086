"""The program that keeps a Ray ready: `python -m clustertrain.launchers.local.warm.keeper FOLDER IDLE_S`.

It ends when there has been no run for IDLE_S seconds, and its spare processes end with it. A run that has
taken them goes on.
"""

from __future__ import annotations

import fcntl
import re
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from clustertrain.errors import ClusterError, ClusterTrainError
from clustertrain.job.file import load_job
from clustertrain.job.model import Job
from clustertrain.launchers.check import environment_of_check
from clustertrain.launchers.local.warm.messages import (
    JOB_FILE,
    SOCKET,
    Answer,
    Ask,
    check_peer,
    receive,
    send,
)
from clustertrain.launchers.local.warm.start import start_of
from clustertrain.launchers.one_host import driver_environment, world_sizes_here
from clustertrain.supervise.check_process import EarlyCheck
from clustertrain.supervise.early_driver import EarlyDriver, StartFolder
from clustertrain.supervise.guardian import descendants
from clustertrain.supervise.private_process import PrivateProcess

_ASKS_WITHIN_S = 5.0


class Keeper:
    """Keeps a spare driver and a spare check for the next run of this job, or of one with the same start."""

    def __init__(self, job: Job, idle_s: float, listens: socket.socket) -> None:
        self._job, self._idle_s, self._listens = job, idle_s, listens
        self._world_size = world_sizes_here(job)[-1]
        self._start = start_of(job, self._world_size)
        self._spare: list[PrivateProcess] = []
        self._runs: dict[socket.socket, list[PrivateProcess]] = {}

    def keep(self) -> None:
        """Keep them until nobody wants them.

        Raises:
            ClusterError: one of them has ended.
        """
        try:
            self._start_spare()
            idle_since, wants_end = time.monotonic(), False
            while not wants_end and (self._runs or time.monotonic() < idle_since + self._idle_s):
                fds: list[socket.socket | int] = [each.process.fd for each in self._spare]
                within_s = None if self._runs else max(0.0, idle_since + self._idle_s - time.monotonic())
                ready, _, _ = select.select([self._listens, *self._runs, *fds], [], [], within_s)
                if ended := [each.process for each in self._spare if each.process.fd in ready]:
                    raise ClusterError(f"A process for the next run has ended:\n{ended[0].last_lines()}")
                for run in self._runs.keys() & ready:
                    self._is_over(run)
                if self._listens in ready:
                    wants_end = self._answer()
                if ready:
                    idle_since = time.monotonic()
        finally:
            for each in self._spare:
                each.discard()

    def _start_spare(self) -> None:
        environment = partial(driver_environment, self._job)
        self._spare = [EarlyDriver.start(self._job, "local", self._world_size, environment, is_spare=True)]
        self._spare += [EarlyCheck.start(environment_of_check(self._job))]

    def _is_over(self, run: socket.socket) -> None:
        """Start the next spare processes, now that the run does not need the processors."""
        run.close()
        for each in self._runs.pop(run):
            each.process.end()  # it has ended, or does so now: this closes our descriptors
        if not self._spare:
            self._start_spare()

    def _answer(self) -> bool:
        """Answer a connection. Returns whether it wants the end."""
        connection, _ = self._listens.accept()
        with suppress(OSError, ClusterTrainError):  # it has ended, or may not ask
            connection.settimeout(_ASKS_WITHIN_S)
            check_peer(connection)
            ask, _ = receive(connection, Ask)
            if ask.what == "down":
                return True
            if ask.what == "take":
                self._hand_over(connection, ask.start)
            else:
                send(connection, self._state())
        if connection not in self._runs:
            connection.close()
        return False

    def _hand_over(self, connection: socket.socket, start: dict[str, str]) -> None:
        names, spare = start.keys() | self._start.keys(), self._spare
        differs = sorted(name for name in names if start.get(name) != self._start.get(name))
        if differs or not spare:
            send(connection, Answer(differs=differs))
            return
        descriptors = [fd for each in spare for fd in each.process.descriptors]
        send(connection, Answer(folders=[str(each.folder) for each in spare]), descriptors)
        for each in spare:
            each.process.let_go()
        self._runs[connection], self._spare = spare, []

    def _state(self) -> Answer:
        is_ready = bool(self._spare) and StartFolder(self._spare[0].folder).ready.exists()
        resources = self._job.resources
        gpus = f" and {resources.gpus_per_worker:g} GPUs" if resources.gpus_per_worker else ""
        kept_for = f"{self._world_size} workers with {resources.cpus_per_worker:g} CPUs{gpus} each"
        memory_bytes = self._memory_bytes() if is_ready else 0
        return Answer(is_ready, bool(self._runs), kept_for, memory_bytes, self._idle_s)

    def _memory_bytes(self) -> int:
        guardians = [each.process.pid for each in self._spare]
        return sum(map(_pss_bytes, [*guardians, *(pid for each in guardians for pid in descendants(each))]))


def _pss_bytes(pid: int) -> int:
    """The memory of a process, its share of what it has in common with others."""
    with suppress(OSError):  # it has ended
        rows = Path(f"/proc/{pid}/smaps_rollup").read_text()
        return sum(int(kib) for kib in re.findall(r"^Pss: +(\d+) kB", rows, re.MULTILINE)) * 1024
    return 0


def main(folder_text: str, idle_text: str) -> None:
    """Keep Ray for the job whose file is in the folder."""
    path = Path(folder_text, SOCKET)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with path.with_name("lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # of two that start at once, one ends here
        path.unlink(missing_ok=True)  # of one that was killed
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listens:
            listens.bind(str(path))
            listens.listen()
            try:
                Keeper(load_job(path.with_name(JOB_FILE)), float(idle_text), listens).keep()
            finally:
                path.unlink(missing_ok=True)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except ClusterTrainError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
