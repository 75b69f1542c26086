"""Accelerate's loop, started by torchrun: on CPUs its own launcher starts one process."""

import lenet
from accelerate import Accelerator
from torch.utils.data import DataLoader
from training_settings import BATCH_SIZE, Settings, settings_of_command


def train(settings: Settings) -> None:
    accelerator = Accelerator(cpu=True)
    notes = lenet.Notes(settings.notes, accelerator.process_index)
    model = lenet.make_model()
    loader = DataLoader(lenet.make_data(settings.data), BATCH_SIZE, shuffle=True, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, lenet.make_optimizer(model), loader)
    for step, batch in lenet.batches(loader, settings.data, 1, settings.steps):
        optimizer.zero_grad()
        accelerator.backward(lenet.loss_of(model, batch))
        optimizer.step()
        notes.step(step)
    accelerator.end_training()


if __name__ == "__main__":
    train(settings_of_command())
