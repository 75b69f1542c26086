"""Ranks: the rank of this process, collectives, and requests on which all ranks agree."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from clustertrain.training.ranks.host import Requests

_T = TypeVar("_T")


@dataclass(frozen=True)
class RankInfo:
    """One rank of 0 to world_size - 1, its number among the ranks of its node, and its device."""

    rank: int
    local_rank: int
    world_size: int
    device: torch.device


def sum_over_ranks(tensor: torch.Tensor, rank_info: RankInfo) -> torch.Tensor:
    """Sum `tensor` in place over all ranks, and return it; it is on `rank_info.device`."""
    if rank_info.world_size > 1:
        dist.all_reduce(tensor)
    return tensor


def gather_over_ranks(tensor: torch.Tensor, rank_info: RankInfo) -> torch.Tensor:
    """Gather the tensors of all ranks on every rank, stacked: (world_size, *shape), on the CPU."""
    if rank_info.world_size == 1:
        return tensor.cpu()[None]
    mine = tensor.to(rank_info.device)
    of_ranks = [torch.empty_like(mine) for _ in range(rank_info.world_size)]
    dist.all_gather(of_ranks, mine)
    return torch.stack(of_ranks).cpu()


def gather_objects(value: _T, rank_info: RankInfo) -> list[_T]:
    """Gather the values of all ranks, pickled, on every rank."""
    of_ranks = [value] * rank_info.world_size
    if rank_info.world_size > 1:
        dist.all_gather_object(of_ranks, value)
    return of_ranks


def gloo_group() -> Any:
    """Create a further group of all ranks, for tensors of the CPU, with the timeout of the default group.

    torch's own timeout of 30 minutes would end a run whose rank 0 saves longer.
    """
    default: Any = dist.group.WORLD
    device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
    options = default._get_backend(device).options
    return dist.new_group(backend="gloo", timeout=options._timeout)


class AsyncMax:
    """The largest of the ranks' numbers, without blocking a step; only with several ranks.

    `send` starts an asynchronous all_reduce, and `receive`, a step later, waits for it, when it is long
    complete.
    """

    def __init__(self) -> None:
        self._pending: tuple[Any, torch.Tensor] | None = None
        self._own_group: Any = None

    def _group(self) -> Any:
        """Return a gloo group, or None if the default group is one.

        NCCL reduces on the GPU, where reading the result would wait for every queued kernel.
        """
        if self._own_group is None and dist.get_backend() != "gloo":
            self._own_group = gloo_group()
        return self._own_group

    def exchange(self, numbers: torch.Tensor) -> torch.Tensor:
        """Wait for the largest of all ranks' numbers, without the delay of a step."""
        dist.all_reduce(numbers, op=dist.ReduceOp.MAX, group=self._group())
        return numbers

    def send(self, numbers: torch.Tensor) -> None:
        work = dist.all_reduce(numbers, op=dist.ReduceOp.MAX, group=self._group(), async_op=True)
        self._pending = (work, numbers)

    def receive(self) -> torch.Tensor | None:
        """Return the numbers of the last `send`, or None if there was none since the last call."""
        if self._pending is None:
            return None
        (work, numbers), self._pending = self._pending, None
        work.wait()
        return numbers

    def close(self) -> None:
        """Wait for a pending exchange; only for an end that all ranks reach, not after an error."""
        self.receive()
        if self._own_group is not None:
            dist.destroy_process_group(self._own_group)


class StopLine:
    """Distributes rank 0's requests to all ranks, for the same step, without blocking a step.

    After each step every rank calls `read`, acts, and calls `broadcast`, for the `read` after the next step.
    So a request takes effect one step later, and costs no time. With one rank the requests are read at once.

    Args:
        requests: those of the launcher.
        save_every_minutes: rank 0's clock asks for a save when they have passed since `saved`.
        slow_step_s: after a step of rank 0 that took longer, the next `read` waits for an exchange of its
            own, so that a request takes effect at once: one long step later it may be too late.
    """

    def __init__(
        self,
        rank_info: RankInfo,
        requests: Callable[[], Requests],
        save_every_minutes: float | None,
        slow_step_s: float = math.inf,
    ) -> None:
        self._rank_info, self._requests_of_launcher = rank_info, requests
        self._save_every_s = 60 * save_every_minutes if save_every_minutes is not None else math.inf
        self._exchange = AsyncMax()
        self._slow_step_s, self._is_slow = slow_step_s, False
        self._kept = Requests()  # what `is_stop_requested` has taken from the launcher, for `read`
        self._saved_at_s = self._step_began_s = time.monotonic()

    def saved(self) -> None:
        """Start the clock again."""
        self._saved_at_s = time.monotonic()

    def read(self) -> Requests:
        """Return the requests for all ranks now, the same on every rank."""
        if self._rank_info.world_size == 1:
            return self._requests()
        self._is_slow = time.monotonic() - self._step_began_s > self._slow_step_s
        flags = self._exchange.receive()
        if flags is None:
            return Requests()
        if flags[-1]:
            now = self._exchange.exchange(self._flags())
            flags = torch.maximum(flags, now)
        *requests, _ = map(bool, flags.tolist())
        return Requests(*requests)

    def broadcast(self) -> None:
        """Distribute rank 0's requests, for the `read` after the next step."""
        if self._rank_info.world_size > 1:
            self._exchange.send(self._flags())
            self._step_began_s = time.monotonic()

    def is_stop_requested(self) -> bool:
        """Return whether a stop is requested now, the same on every rank, and wait for all ranks."""
        stop = torch.zeros(1, dtype=torch.int32)
        if self._rank_info.rank == 0:
            self._kept = self._requests()
            stop += self._kept.stop
        return bool(self._exchange.exchange(stop) if self._rank_info.world_size > 1 else stop)

    def _requests(self) -> Requests:
        (stop, save, timer), self._kept = self._kept, Requests()
        new = self._requests_of_launcher()
        timer |= new.save_timer or time.monotonic() - self._saved_at_s >= self._save_every_s
        return Requests(new.stop or stop, new.save or save, timer)

    def _flags(self) -> torch.Tensor:
        """Return this rank's requests, and whether its last step was slow, as int32; only rank 0's count."""
        if self._rank_info.rank != 0:
            return torch.zeros(len(Requests._fields) + 1, dtype=torch.int32)
        return torch.tensor([*self._requests(), self._is_slow], dtype=torch.int32)

    def close(self) -> None:
        """Wait for a pending exchange, as LaterMax.close does."""
        self._exchange.close()
