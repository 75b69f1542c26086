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
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from clustertrain.errors import ClusterError, ClusterTrainError
from clustertrain.job.file import load_job
from clustertrain.job.model import Job
from clustertrain.launchers.check import environment_of_check
from clustertrain.launchers.local.warm.messages import Answer, Ask, check_peer, receive, send, socket_in
from clustertrain.launchers.local.warm.start import start_of
from clustertrain.launchers.one_host import driver_environment, world_sizes_here
from clustertrain.supervise.check_process import EarlyCheck
from clustertrain.supervise.early_driver import EarlyDriver, StartFolder
from clustertrain.supervise.guardian import descendants

JOB_FILE, LOG = "job.yaml", "log"
_BACKLOG = 8
_ASKS_WITHIN_S = 5.0


class Spare:
    """The processes for one run, started before it: a driver and, where code is checked, a check."""

    def __init__(self, job: Job, world_size: int) -> None:
        environment = partial(driver_environment, job)
        self.driver = EarlyDriver.start(job, "local", world_size, environment, is_spare=True)
        self.check = None if job.is_script else EarlyCheck.start(environment_of_check(job))
        self.guarded = [each.process for each in (self.driver, self.check) if each is not None]

    @property
    def is_ready(self) -> bool:
        return StartFolder(self.driver.folder).ready.exists()

    def discard(self) -> None:
        for each in (self.driver, self.check):
            if each is not None:
                each.discard()


class Keeper:
    """Keeps spare processes for the next run of this job, or of one with the same start."""

    def __init__(self, job: Job, idle_s: float, listens: socket.socket) -> None:
        self._job, self._idle_s, self._listens = job, idle_s, listens
        self._world_size = world_sizes_here(job)[-1]
        self._start = start_of(job, self._world_size)
        self._spare: Spare | None = None
        self._runs: dict[socket.socket, Spare] = {}

    def keep(self) -> socket.socket | None:
        """Keep them until nobody wants them. Returns the connection that asked for the end, if one did.

        Raises:
            ClusterError: they end before they are ready.
        """
        try:
            self._spare = Spare(self._job, self._world_size)
            ends = time.monotonic() + self._idle_s
            while self._runs or time.monotonic() < ends:
                spare = self._spare.guarded if self._spare is not None else []
                fds: list[socket.socket | int] = [self._listens, *self._runs, *(each.fd for each in spare)]
                readable = select.select(
                    fds, [], [], None if self._runs else max(0.0, ends - time.monotonic())
                )[0]
                if self._runs or readable:
                    ends = time.monotonic() + self._idle_s
                if any(each.fd in readable for each in spare):
                    self._renew()
                for run in [*self._runs.keys() & set(readable)]:
                    self._is_over(run)
                if self._listens in readable and (asks_for_end := self._answer()) is not None:
                    return asks_for_end
            return None
        finally:
            if self._spare is not None:
                self._spare.discard()

    def _renew(self) -> None:
        """Start spare processes in place of those of which one has ended, as when its Ray was killed."""
        assert self._spare is not None
        if not self._spare.is_ready:
            last = "\n".join(each.last_lines() for each in self._spare.guarded)
            raise ClusterError(f"The processes for the next run ended while they started:\n{last}")
        self._spare.discard()
        self._spare = Spare(self._job, self._world_size)

    def _is_over(self, run: socket.socket) -> None:
        """Start the next spare processes, now that the run does not need the processors."""
        run.close()
        for each in self._runs.pop(run).guarded:
            each.end()  # it has ended, or does so now: this closes our descriptors
        if self._spare is None:
            self._spare = Spare(self._job, self._world_size)

    def _answer(self) -> socket.socket | None:
        """Answer a connection. Returns it if it asks for the end."""
        connection, _ = self._listens.accept()
        with ExitStack() as stack, suppress(OSError, ClusterTrainError):  # it has ended, or may not ask
            stack.callback(connection.close)
            connection.settimeout(_ASKS_WITHIN_S)
            check_peer(connection)
            ask, _ = receive(connection, Ask)
            if ask.what == "take":
                self._hand_over(connection, ask.start)
            elif ask.what == "state":
                send(connection, self.state())
            if ask.what == "down" or connection in self._runs:
                stack.pop_all()
            return connection if ask.what == "down" else None
        return None

    def _hand_over(self, connection: socket.socket, start: dict[str, str]) -> None:
        names = start.keys() | self._start.keys()
        differs = sorted(name for name in names if start.get(name) != self._start.get(name))
        spare = self._spare
        if spare is None or differs:
            send(connection, self.state(differs=differs))
            return
        check = str(spare.check.folder) if spare.check is not None else ""
        answer = self.state(driver=str(spare.driver.folder), check=check)
        send(connection, answer, [fd for each in spare.guarded for fd in each.descriptors])
        for each in spare.guarded:
            each.let_go()
        self._runs[connection], self._spare = spare, None

    def state(self, differs: list[str] | None = None, driver: str = "", check: str = "") -> Answer:
        resources = self._job.resources
        gpus = f" and {resources.gpus_per_worker:g} GPUs" if resources.gpus_per_worker else ""
        kept_for = f"{self._world_size} workers with {resources.cpus_per_worker:g} CPUs{gpus} each"
        is_ready = self._spare is not None and self._spare.is_ready
        return Answer(
            is_ready,
            len(self._runs),
            kept_for,
            self._memory_bytes(),
            self._idle_s,
            differs or [],
            driver,
            check,
        )

    def _memory_bytes(self) -> int:
        if self._spare is None or not self._spare.is_ready:
            return 0
        guardians = [each.pid for each in self._spare.guarded]
        return sum(map(_pss_bytes, [*guardians, *(pid for each in guardians for pid in descendants(each))]))


def _pss_bytes(pid: int) -> int:
    """The memory of a process, its share of what it has in common with others."""
    with suppress(OSError, ValueError):  # it has ended
        rows = Path(f"/proc/{pid}/smaps_rollup").read_text()
        return sum(int(kib) for kib in re.findall(r"^Pss: +(\d+) kB", rows, re.MULTILINE)) * 1024
    return 0


def main(folder_text: str, idle_text: str) -> None:
    """Keep Ray for the job whose file is in the folder."""
    folder = Path(folder_text)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # of two that start at once, one ends here
        path = Path(socket_in(folder))
        path.unlink(missing_ok=True)  # of one that was killed
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listens:
            listens.bind(str(path))
            listens.listen(_BACKLOG)
            keeper = Keeper(load_job(folder / JOB_FILE), float(idle_text), listens)
            try:
                asks_for_end = keeper.keep()
            finally:
                path.unlink(missing_ok=True)
            if asks_for_end is not None:
                send(asks_for_end, keeper.state())


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except ClusterTrainError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
