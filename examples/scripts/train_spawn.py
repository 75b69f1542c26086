"""The DDP tutorial with torch.multiprocessing.spawn: this process starts a rank per GPU of its node.

As in PyTorch's ImageNet example, RANK and WORLD_SIZE of the environment count nodes.

MASTER_ADDR=localhost MASTER_PORT=29500 python train_spawn.py --nprocs 2
clustertrain run spawn.yaml
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from train import dataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nprocs", type=int, default=torch.cuda.device_count())
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.1)
    args = parser.parse_args()
    node, nodes = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    mp.spawn(train, args=(node, nodes, args), nprocs=args.nprocs)


def train(local_rank, node, nodes, args):
    rank, world_size = node * args.nprocs + local_rank, nodes * args.nprocs
    use_cuda = torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if use_cuda else torch.device("cpu")
    # It reads MASTER_ADDR and MASTER_PORT. Rank and world size are given: RANK and WORLD_SIZE count nodes.
    dist.init_process_group("nccl" if use_cuda else "gloo", rank=rank, world_size=world_size)

    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    data = dataset(4096, seed=1)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=64, sampler=sampler)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(2, device=device)  # sum of losses, samples
        for batch in loader:
            x, y = (part.to(device) for part in batch)
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += torch.tensor([loss.item() * len(x), len(x)], device=device)
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch}: mean loss {(total[0] / total[1]).item():.4f}", flush=True)
    print(f"rank {rank} of {world_size} is done, on node {node} of {nodes}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
