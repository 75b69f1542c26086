"""The loop of torchrun_ddp.py, its processes started by torch.multiprocessing.spawn."""

import os
import socket

import torch.multiprocessing
from torchrun_ddp import train
from training_settings import RANKS, Settings, settings_of_command


def train_rank(rank: int, port: int, settings: Settings) -> None:
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update(where, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS))
    train(settings)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    torch.multiprocessing.spawn(train_rank, (free_port(), settings_of_command()), RANKS)
