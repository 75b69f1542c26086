"""A script for torch.distributed.launch, with the default of docs/guides/port.md for the number of its GPU.

python -m torch.distributed.launch --nproc-per-node 2 train_launch.py
"""

import argparse
import json
import os

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", "--local-rank", type=int, default=int(os.environ["LOCAL_RANK"]))
args = parser.parse_args()
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
seen = {"rank": dist.get_rank(), "world_size": dist.get_world_size(), "total": total.item()}
print(json.dumps({**seen, "local_rank": args.local_rank}), flush=True)
dist.destroy_process_group()
