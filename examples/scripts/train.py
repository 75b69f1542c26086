"""The DDP tutorial, unchanged: it uses torchrun's environment and does not import clustertrain.

torchrun --nproc-per-node 2 train.py --epochs 3
clustertrain run job.yaml
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def dataset(samples, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 16, generator=generator)
    return TensorDataset(x, (x[:, :4].sum(1) > 0).long())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.1)
    args = parser.parse_args()

    use_cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if use_cuda else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if use_cuda else torch.device("cpu")

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

    x, y = dataset(1024, seed=2).tensors
    mine = slice(rank * len(x) // world_size, (rank + 1) * len(x) // world_size)
    with torch.no_grad():
        right = (model.module(x[mine].to(device)).argmax(1) == y[mine].to(device)).sum()
    gathered = [torch.zeros_like(right) for _ in range(world_size)]
    dist.all_gather(gathered, right)
    if rank == 0:
        print(f"accuracy {sum(int(g) for g in gathered) / len(x):.4f} on {world_size} ranks", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
