"""An unchanged torchrun script on the GPU of its local rank; on a CPU with gloo."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    model = DistributedDataParallel(torch.nn.Linear(8, 2).to(device))
    for _ in range(3):
        model(torch.ones(4, 8, device=device)).square().mean().backward()
    print(f"rank {dist.get_rank()} of {dist.get_world_size()} trained on {device.type}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
