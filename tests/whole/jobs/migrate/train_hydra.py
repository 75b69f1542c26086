"""A DDP loop with Hydra's configuration. Nothing here is written for clustertrain.

torchrun --nproc-per-node 2 train_hydra.py lr=0.1 dir=checkpoints
"""

import json
from pathlib import Path

import hydra
import torch
import torch.distributed as dist
from omegaconf import DictConfig
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(config: DictConfig) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=config.optimizer.lr)
    data = TensorDataset(torch.arange(16), torch.rand(16, 1))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)

    checkpoint = Path(config.dir) / "last.pt"
    first_epoch = 0
    if config.resume:
        state = torch.load(checkpoint)
        model.module.load_state_dict(state["model"])
        first_epoch = state["epochs"]
    samples = []
    for epoch in range(first_epoch, config.epochs):
        sampler.set_epoch(epoch)
        for ids, x in loader:
            samples += ids.tolist()
            loss = (model(x) - 2 * x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            torch.save({"model": model.module.state_dict(), "epochs": epoch + 1}, checkpoint)
    seen = {
        "rank": rank,
        "world_size": dist.get_world_size(),
        "samples": sorted(samples),
        "epochs": [first_epoch, config.epochs],
        "weight": model.module.weight.item(),
        "lr": config.optimizer.lr,
    }
    print(json.dumps(seen))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
