"""An unchanged torchrun script: its own process group, its own signals, its own exit code."""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    total = torch.tensor([float(rank + 1)])
    dist.all_reduce(total)
    signal.signal(signal.SIGUSR1, lambda number, frame: None)  # works in a main thread alone
    names = (
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "TORCHELASTIC_RESTART_COUNT",
        "CUDA_VISIBLE_DEVICES",
        "MASTER_PORT",
    )
    print(" ".join(f"{name}={os.environ[name]}" for name in names))
    print(f"sum over {world_size} ranks: {total.item():g}; ray: {'ray' in sys.modules}; args: {sys.argv[1:]}")
    dist.destroy_process_group()
    if "--fail-at-first" in sys.argv and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        Path(os.environ["CLUSTERTRAIN_CHECKPOINT_DIR"], "checkpoint.pt").touch()
        print("the disk of rank 1 is full of eels", file=sys.stderr)
        sys.exit(7)


if __name__ == "__main__":
    main()
