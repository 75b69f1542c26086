"""The DDP tutorial with mp.spawn. Nothing here is written for clustertrain.

python train_spawn.py --port 12355
"""

import argparse
import json
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main(rank, world_size, args):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = args.port
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.arange(16), torch.rand(16, 1))
    samples = []
    for ids, x in DataLoader(data, batch_size=4, sampler=DistributedSampler(data)):
        samples += ids.tolist()
        optimizer.zero_grad()
        (model(x) - 2 * x).square().mean().backward()
        optimizer.step()
    seen = {
        "rank": dist.get_rank(),
        "world_size": dist.get_world_size(),
        "samples": sorted(samples),
        "epochs": [0, 1],
        "weight": model.module.weight.item(),
    }
    print(json.dumps(seen), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", default="12355")
    mp.spawn(main, args=(2, parser.parse_args()), nprocs=2)
