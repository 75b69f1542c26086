"""A worker group without Ray, on this machine: its ranks are forks of the fork server.

What it offers is what Ray Train's worker group offers, so that the steps of a start, the cause of a failure
and the rules for another start are the same.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_any
from pathlib import Path
from typing import Any

from clustertrain import variables
from clustertrain.driver.calls import RankDied
from clustertrain.driver.fork.starter import start_fork_server
from clustertrain.driver.group.start import GroupStart
from clustertrain.driver.retry_policy import GroupNotStarted
from clustertrain.node.network import LOOPBACK
from clustertrain.worker.fork.client import ask
from clustertrain.worker.forked_rank import Call, set_up, train
from clustertrain.worker.place import Place

_ENDS_WITHIN_S = 30.0  # of a killed process, whose GPU or storage may not answer


@dataclass(frozen=True)
class Metadata:
    """The process of a rank, named as in Ray Train."""

    pid: int
    hostname: str
    node_ip: str = LOOPBACK
    node_id: str = ""


@dataclass(frozen=True)
class Context:
    """The place of a rank, named as in Ray Train."""

    world_rank: int
    local_rank: int
    node_rank: int = 0


class ForkedRank:
    """The process of a rank, and the calls that it has not answered yet."""

    def __init__(self, place: Place) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            _ask_for(place, (theirs.fileno(), 1, 2))
        self._channel = Connection(ours.detach())
        self.metadata = Metadata(self._channel.recv(), socket.gethostname())
        self._process = os.pidfd_open(self.metadata.pid)
        self.distributed_context = Context(place.rank, place.local_rank)
        self._numbers, self._calls = count(), dict[int, Future[Any]]()
        self._lock, self._has_ended = threading.Lock(), False
        self._reader = threading.Thread(target=self._read, name=f"reader-{place.rank}", daemon=True)
        self._reader.start()

    def execute_async(self, function: Callable[..., Any], *args: Any, aside: bool = False) -> Future[Any]:
        """Call a function in the rank. `aside`: in a thread of its own; the rank answers other calls then."""
        answered = Future[Any]()
        with self._lock:
            number = next(self._numbers)
            self._calls[number] = answered
            with suppress(OSError):  # it has ended, which the reader notices
                self._channel.send(Call(number, function, args, aside))
            if self._has_ended:
                self._fail_all()
        return answered

    def kill(self) -> None:
        with self._lock, suppress(ProcessLookupError):
            if not self._has_ended:
                signal.pidfd_send_signal(self._process, signal.SIGKILL)

    def wait_for_end(self) -> None:
        self._reader.join(_ENDS_WITHIN_S)

    def _read(self) -> None:
        """Take the answers until the process has ended. The end of the channel does not show that: children
        of the process may have it, too."""
        try:
            with suppress(EOFError, OSError):
                while self._channel in wait_for_any([self._channel, self._process]):
                    self._take(*self._channel.recv())
        finally:  # also of an answer that cannot be read
            self.kill()
            wait_for_any([self._process])
            with self._lock:
                self._has_ended = True
                self._channel.close()
                os.close(self._process)
                self._fail_all()

    def _take(self, number: int, result: Any, error: BaseException | None) -> None:
        answered = self._calls.pop(number)
        if error is None:
            answered.set_result(result)
        else:
            answered.set_exception(error)

    def _fail_all(self) -> None:
        while self._calls:
            _, answered = self._calls.popitem()
            pid = self.metadata.pid
            answered.set_exception(RankDied(f"The process {pid} of a rank has ended.", pid))


def _ask_for(place: Place, files: Sequence[int]) -> None:
    """Ask the fork server for a rank; one that the kernel has killed for memory is started again."""
    request = {"place": json.dumps(asdict(place))}
    try:
        ask(request, files)
    except OSError as error:
        print(f"clustertrain: the fork server does not answer, and is started again: {error}", flush=True)
        folder = Path(os.environ[variables.FORK_SERVER]).parent
        start_fork_server(folder, cpus_per_worker=1)  # OMP_NUM_THREADS is set
        ask(request, files)


class ForkedGroup:
    """The ranks of one start."""

    def __init__(self) -> None:
        self._ranks: list[ForkedRank] = []

    def start(self, world_size: int, gpus_per_worker: int) -> None:
        """
        Raises:
            GroupNotStarted: a rank did not start.
        """
        try:
            for rank in range(world_size):
                place = Place(
                    rank=rank,
                    world_size=world_size,
                    local_rank=rank,
                    local_world_size=world_size,
                    node_rank=0,
                    address=LOOPBACK,
                    gpus=tuple(range(rank * gpus_per_worker, (rank + 1) * gpus_per_worker)),
                )
                self._ranks.append(ForkedRank(place))
        except (OSError, EOFError) as error:
            raise GroupNotStarted(f"Rank {len(self._ranks)} did not start.") from error

    def get_workers(self) -> Sequence[ForkedRank]:
        return self._ranks

    def train(self) -> dict[int, BaseException]:
        """Train until all ranks have returned or one has failed. Returns the errors by rank."""
        calls = [rank.execute_async(train, aside=True) for rank in self._ranks]
        wait(calls, return_when=FIRST_EXCEPTION)
        errors = {rank: call.exception() for rank, call in enumerate(calls) if call.done()}
        return {rank: error for rank, error in errors.items() if error is not None}

    def end(self) -> None:
        for rank in self._ranks:
            rank.kill()
        for rank in self._ranks:
            rank.wait_for_end()


@dataclass(frozen=True)
class ForkedTrainer:
    """What Ray Train's TorchTrainer does, on this machine and without Ray."""

    group_start: GroupStart
    world_size: int
    gpus_per_worker: int

    def fit(self) -> None:
        """Start the group until its training has returned. Raises as RetryPolicy.before_restart."""
        while not self._has_trained():
            self.group_start.watch.before_restart()

    def _has_trained(self) -> bool:
        watch, group = self.group_start.watch, ForkedGroup()
        try:
            group.start(self.world_size, self.gpus_per_worker)
            self.group_start.run(group, set_up, ForkedGroup.end)
            watch.has_started()
            errors = group.train()
            if errors:
                watch.has_failed(errors)
        except GroupNotStarted:
            traceback.print_exc()
            return False
        finally:
            group.end()
        return not errors
