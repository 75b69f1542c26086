"""Failures of distributed training, by two processes with gloo: each function causes the one of its name."""

import datetime
import os
import socket
import subprocess
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ALL_RANKS_S = 20


def _free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _rank(rank, port, body, timeout_s):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout_s))
    globals()[body](rank)


def _two_ranks(body, timeout_s=ALL_RANKS_S):
    mp.spawn(_rank, (_free_port(), body, timeout_s), nprocs=2)


def gloo_peer():
    _two_ranks("_one_ends")


def _one_ends(rank):
    if rank == 1:
        os._exit(0)
    time.sleep(1)
    dist.all_reduce(torch.ones(1))


def gloo_timeout():
    _two_ranks("_one_stays_away", timeout_s=2)


def _one_stays_away(rank):
    if rank == 1:
        time.sleep(6)
    dist.all_reduce(torch.ones(1))


def gloo_interface():
    os.environ["GLOO_SOCKET_IFNAME"] = "ib7"
    _two_ranks("_one_ends")


def store_timeout():
    dist.TCPStore("127.0.0.1", 0, 2, True, timeout=datetime.timedelta(seconds=1))


def torchrun_rendezvous():
    conf = "--rdzv-conf=join_timeout=2,last_call_timeout=1,timeout=2"
    end = f"--rdzv-endpoint=127.0.0.1:{_free_port()}"
    command = ["-m", "torch.distributed.run", "--nnodes=2", "--rdzv-backend=c10d", end, conf, "none.py"]
    sys.exit(subprocess.call([sys.executable, *command]))


def address_in_use():
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(other.getsockname()[1]))
        dist.init_process_group("gloo", rank=0, world_size=1)


def unused_parameters():
    _two_ranks("_leave_unused")


def _leave_unused(rank):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(2, 1), nn.Linear(2, 1)

        def forward(self, x):
            return self.used(x)

    model = DistributedDataParallel(Model())
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()


def collective_mismatch():
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    _two_ranks("_call_others")


def _call_others(rank):
    if rank == 0:
        dist.all_reduce(torch.ones(2))
    else:
        dist.broadcast(torch.ones(2), 0)


def ended_early():
    _two_ranks("_uneven")


def _uneven(rank):
    from torch.distributed.algorithms.join import Join

    model = DistributedDataParallel(nn.Linear(2, 1))
    with Join([model], throw_on_early_termination=True):
        for _ in range(3 - rank):
            model(torch.ones(1, 2)).sum().backward()


def different_models():
    _two_ranks("_build_another")


def _build_another(rank):
    DistributedDataParallel(nn.Linear(2, 3 + rank))


def no_process_group():
    dist.all_reduce(torch.ones(1))


def second_process_group():
    for _ in range(2):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def nccl_without_gpu():
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)


def no_rank_variables():
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    dist.init_process_group("gloo")
