"""Ranks: the rank of this process, the process group, and requests on which all ranks agree."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from clustertrain.errors import ClusterError
from clustertrain.training.ranks.host import Requests

COLLECTIVE_TIMEOUT_S = 1800.0  # a rank that waits longer for the others gives up


@dataclass(frozen=True)
class RankInfo:
    """One rank of 0 to world_size - 1, its number among the ranks of its node, and its device."""

    rank: int
    local_rank: int
    world_size: int
    device: torch.device


def init_process_group(timeout_s: float = COLLECTIVE_TIMEOUT_S) -> RankInfo:
    """Join the process group of torchrun's environment; without that environment, world_size is 1.

    Reads RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. NCCL on GPUs, gloo on CPUs.

    Raises:
        ClusterError: LOCAL_RANK names a GPU that this node does not have.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = _device(local_rank)
    if "RANK" not in os.environ:
        return RankInfo(rank=0, local_rank=0, world_size=1, device=device)
    on_gpu = device.type == "cuda"
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        timeout=timedelta(seconds=timeout_s),
        device_id=device if on_gpu else None,
    )
    return RankInfo(dist.get_rank(), local_rank, dist.get_world_size(), device)


def _device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    gpus = torch.cuda.device_count()
    if local_rank >= gpus:
        raise ClusterError(
            f"LOCAL_RANK is {local_rank}, but this node has {gpus} GPUs: local ranks are 0 to {gpus - 1}.\n"
            "Start one process per GPU."
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def destroy_process_group() -> None:
    """Destroy the process group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def sum_over_ranks(tensor: torch.Tensor, rank_info: RankInfo) -> torch.Tensor:
    """`tensor` summed in place over all ranks; it is on `rank_info.device`."""
    if rank_info.world_size > 1:
        dist.all_reduce(tensor)
    return tensor


def gather_over_ranks(tensor: torch.Tensor, rank_info: RankInfo) -> torch.Tensor:
    """The tensors of all ranks, stacked: (world_size, *shape), on the CPU, the same on every rank."""
    if rank_info.world_size == 1:
        return tensor.cpu()[None]
    mine = tensor.to(rank_info.device)
    of_ranks = [torch.empty_like(mine) for _ in range(rank_info.world_size)]
    dist.all_gather(of_ranks, mine)
    return torch.stack(of_ranks).cpu()


def gloo_group() -> Any:
    """A further group of all ranks, for tensors of the CPU, with the timeout of the default group. torch's
    own of 30 minutes would end a run whose rank 0 saves longer.
    """
    default: Any = dist.group.WORLD
    device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
    options = default._get_backend(device).options
    return dist.new_group(backend="gloo", timeout=options._timeout)


class StopLine:
    """Distributes rank 0's requests to all ranks, for the same step, without blocking a step.

    After each step every rank calls `read`, acts, and calls `broadcast`. `broadcast` starts an asynchronous
    all_reduce; `read` after the next step waits for it, when it is long complete. So a request takes effect
    one step later, and costs no time. With one rank the requests are read at once.

    Args:
        slow_step_s: after a step of rank 0 that took longer, the next `read` waits for an exchange of its
            own, so that a request takes effect at once: one long step later it may be too late.
    """

    def __init__(
        self, rank_info: RankInfo, requests: Callable[[], Requests], slow_step_s: float = math.inf
    ) -> None:
        self._rank_info = rank_info
        self._requests = requests
        self._pending: tuple[Any, torch.Tensor] | None = None
        self._slow_step_s, self._is_slow = slow_step_s, False
        self._step_began_s = time.monotonic()
        self._group: Any = None
        # NCCL reduces on the GPU, where reading the result would wait for every queued kernel.
        self._own_group = rank_info.world_size > 1 and dist.get_backend() != "gloo"
        if self._own_group:
            self._group = gloo_group()

    def read(self) -> Requests:
        """The requests for all ranks now; the same on every rank."""
        if self._rank_info.world_size == 1:
            return self._requests()
        self._is_slow = time.monotonic() - self._step_began_s > self._slow_step_s
        if self._pending is None:
            return Requests()
        (work, flags), self._pending = self._pending, None
        work.wait()
        *requests, slow = (bool(flag) for flag in flags.tolist())
        if slow:
            flags = self._flags()
            dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=self._group)
            *now, _ = (bool(flag) for flag in flags.tolist())
            requests = [old or new for old, new in zip(requests, now, strict=True)]
        return Requests(*requests)

    def broadcast(self) -> None:
        """Distribute rank 0's requests, for the `read` after the next step."""
        if self._rank_info.world_size == 1:
            return
        flags = self._flags()
        work = dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        self._pending = (work, flags)
        self._step_began_s = time.monotonic()

    def _flags(self) -> torch.Tensor:
        """int32: this rank's requests, and whether its last step was slow. Only rank 0's count."""
        if self._rank_info.rank != 0:
            return torch.zeros(len(Requests._fields) + 1, dtype=torch.int32)
        return torch.tensor([*self._requests(), self._is_slow], dtype=torch.int32)

    def close(self) -> None:
        """Wait for the pending all_reduce; only for an end that all ranks reach, not after an error."""
        if self._pending is not None:
            self._pending[0].wait()
            self._pending = None
        if self._own_group:
            dist.destroy_process_group(self._group)
