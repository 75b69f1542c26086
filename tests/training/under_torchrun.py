"""A script for torchrun: the loop without any launcher of the kit."""

import os
import sys
from pathlib import Path

import torch.distributed as dist

from clustertrain.training.loop import train
from clustertrain.training.settings import TrainSettings
from training.ranks import rank_of_torchrun
from training.tasks import MemoryRun, Plain

if __name__ == "__main__":
    rank_info = rank_of_torchrun()
    result = train(Plain(), TrainSettings(steps=8, batch_size=4), rank_info, MemoryRun(rank_info.rank), {})
    if met := {"ray", "pydantic"} & sys.modules.keys():
        raise SystemExit(f"imported: {met}")
    (Path(sys.argv[1]) / f"{rank_info.world_size}-{rank_info.rank}").write_text(
        f"{result.step} {result.finished}"
    )
    if rank_info.world_size > 1:
        dist.destroy_process_group()
    # DDP keeps gloo's threads alive beyond the group (torch 2.13: three after destroy_process_group),
    # and on a busy machine one of them once aborted the interpreter at its end. That end is not tested here.
    sys.stdout.flush()
    os._exit(0)
