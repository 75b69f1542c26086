"""One rank in this process, outside Ray: the environment, the device and the process group of a worker.

For the check of the code and for `run --debug`. The group has one rank and no network.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from clustertrain.job.model import Job
from clustertrain.node.network import LOOPBACK
from clustertrain.node.ports import free_block
from clustertrain.worker.place import ONLY_RANK
from clustertrain.worker.scripts.script import torchrun_environment

if TYPE_CHECKING:
    import torch

    from clustertrain.training.ranks.distributed import RankInfo


def device_of(job: Job) -> torch.device:
    """Return the first GPU if the workers of the job have GPUs and torch can use one here; else the CPU."""
    import torch

    has_gpu = job.resources.gpus_per_worker > 0 and torch.cuda.is_available()
    return torch.device("cuda", 0) if has_gpu else torch.device("cpu")


def set_environment() -> None:
    """Set torchrun's variables for the one rank."""
    os.environ |= torchrun_environment(ONLY_RANK, restart=0, retries=0, run_id="one-rank")
    os.environ |= {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(free_block(1, seed=os.getpid()).first)}


@contextmanager
def rank_zero(device: torch.device) -> Iterator[RankInfo]:
    """Make this process rank 0 of 1 within the block, in a process group.

    User code may call torch.distributed.
    """
    import torch.distributed as dist

    from clustertrain.training.ranks.distributed import RankInfo

    set_environment()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # there is no other rank to reach
    backend = "nccl" if device.type == "cuda" else "gloo"
    store = dist.HashStore()  # type: ignore[attr-defined]  # torch exports it without declaring it
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        yield RankInfo(rank=0, local_rank=0, world_size=1, device=device)
    finally:
        dist.destroy_process_group()
