"""A worker group without Ray, on this machine: its ranks are forks of the fork server.

What it offers is what Ray Train's worker group offers, so that the steps of a start, the cause of a failure
and the rules for another start are the same.
"""

from __future__ import annotations

import os
import signal
import socket
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_any
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from clustertrain.driver.calls import RankDied
from clustertrain.driver.fork.starter import start_fork_server
from clustertrain.driver.group.start import GroupNotStarted, GroupStart
from clustertrain.node import variables
from clustertrain.node.network import LOOPBACK
from clustertrain.worker.fork.client import ask
from clustertrain.worker.forked_rank import set_up, train
from clustertrain.worker.place import Place

_LONGEST_POLL_S = 86400.0 * 24  # poll takes milliseconds in 32 bits
_ENDS_WITHIN_S = 30.0  # of a killed process, whose GPU or storage may not answer


class ForkedRank:
    """The process of a rank.

    It has one channel for calls and another one for calls `aside`, each with a thread at both ends.

    Attributes:
        metadata, distributed_context: what is known of the process and of its place, named as in Ray Train.
    """

    def __init__(self, place: Place, starts_within_s: float) -> None:
        pairs = [socket.socketpair() for _ in range(2)]
        (_, calls), (_, aside) = pairs
        with calls, aside:
            _ask_for(place, (calls.fileno(), 1, 2, aside.fileno()))
        self._channels = [Connection(ours.detach()) for ours, _ in pairs]
        self._callers = [ThreadPoolExecutor(1) for _ in pairs]
        if not self._channels[0].poll(min(starts_within_s, _LONGEST_POLL_S)):
            raise TimeoutError(f"its process has not answered within {starts_within_s:g} s")
        pid, host = self._channels[0].recv(), socket.gethostname()
        self.metadata = SimpleNamespace(pid=pid, hostname=host, node_ip=place.address, node_id="")
        self.distributed_context = SimpleNamespace(
            world_rank=place.rank, local_rank=place.local_rank, node_rank=place.node_rank
        )
        self._process = os.pidfd_open(pid)

    def execute_async(self, function: Callable[..., Any], *args: Any, aside: bool = False) -> Future[Any]:
        """Call a function in the rank. `aside`: in a thread of its own; the rank answers other calls then."""
        return self._callers[aside].submit(self._call, self._channels[aside], function, args)

    def _call(self, channel: Connection, function: Callable[..., Any], args: Sequence[Any]) -> Any:
        """Call the function in the rank, and return its result.

        The end of the channel alone does not show that the process has ended: its children may have the
        channel, too.
        """
        answer: tuple[Any, BaseException | None] | None = None
        with suppress(EOFError, OSError):  # it has ended
            channel.send((function, args))
            if channel in wait_for_any([channel, self._process]):
                answer = channel.recv()
        if answer is None:
            self.kill()
            wait_for_any([self._process])
            pid = self.metadata.pid
            raise RankDied(f"The process {pid} of a rank has ended.", pid)
        result, error = answer
        if error is not None:
            raise error
        return result

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, signal.SIGKILL)

    def close(self) -> None:
        """Wait for the end of the process, after which no call waits any more."""
        if wait_for_any([self._process], _ENDS_WITHIN_S):
            for caller, channel in zip(self._callers, self._channels, strict=True):
                caller.shutdown()
                channel.close()
            os.close(self._process)


def _ask_for(place: Place, files: Sequence[int]) -> None:
    """Ask the fork server for a rank; one that the kernel has killed for memory is started again."""
    request = {"place": asdict(place)}
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

    def start(self, world_size: int, gpus_per_worker: int, starts_within_s: float) -> None:
        """Start the ranks on this machine.

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
                self._ranks.append(ForkedRank(place, starts_within_s))
        except (OSError, EOFError) as error:
            raise GroupNotStarted(f"Rank {len(self._ranks)} did not start.") from error

    def get_workers(self) -> Sequence[ForkedRank]:
        return self._ranks

    def train(self) -> dict[int, BaseException]:
        """Train until all ranks have returned or one has failed; return the errors by rank."""
        calls = [rank.execute_async(train, aside=True) for rank in self._ranks]
        wait(calls, return_when=FIRST_EXCEPTION)
        errors = {rank: call.exception() for rank, call in enumerate(calls) if call.done()}
        return {rank: error for rank, error in errors.items() if error is not None}

    def end(self) -> None:
        """End the ranks that there still are."""
        ranks, self._ranks = self._ranks, []
        for rank in ranks:
            rank.kill()
        for rank in ranks:
            rank.close()


def has_trained(start: GroupStart, world_size: int) -> bool:
    """Start the group once; return whether its training has returned in all ranks.

    Raises as GroupStart.run, except GroupNotStarted.
    """
    group = ForkedGroup()
    try:
        group.start(world_size, start.job.resources.gpus_per_worker, start.answer_s)
        start.run(group, set_up)
        errors = group.train()
        if errors:
            start.has_failed(errors)
        return not errors
    except GroupNotStarted:
        traceback.print_exc()
        return False
    finally:
        group.end()
