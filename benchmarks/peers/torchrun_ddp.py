"""The loop that most scripts have: DDP and a DistributedSampler, started by torchrun."""

import os

import lenet
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from training_settings import BATCH_SIZE, Settings, settings_of_command


def train(settings: Settings) -> None:
    """Trains in the environment that torchrun sets."""
    dist.init_process_group("gloo")
    notes = lenet.Notes(settings.notes, int(os.environ["RANK"]))
    data = lenet.make_data(settings.data)
    loader = DataLoader(data, BATCH_SIZE, sampler=DistributedSampler(data), drop_last=True)
    model = DistributedDataParallel(lenet.make_model())
    optimizer = lenet.make_optimizer(model)
    for step, batch in lenet.batches(loader, settings.data, 1, settings.steps):
        optimizer.zero_grad()
        lenet.loss_of(model, batch).backward()
        optimizer.step()
        notes.step(step)
    dist.destroy_process_group()


if __name__ == "__main__":
    train(settings_of_command())
