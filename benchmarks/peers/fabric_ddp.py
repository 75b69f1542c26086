"""Lightning Fabric's loop, which starts its processes itself."""

import lenet
from lightning.fabric import Fabric
from torch.utils.data import DataLoader
from training_settings import BATCH_SIZE, RANKS, Settings, settings_of_command


def train(settings: Settings) -> None:
    fabric = Fabric(accelerator="cpu", devices=RANKS, strategy="ddp")
    fabric.launch()
    notes = lenet.Notes(settings.notes, fabric.global_rank)
    model = lenet.make_model()
    model, optimizer = fabric.setup(model, lenet.make_optimizer(model))
    data = DataLoader(lenet.make_data(settings.data), BATCH_SIZE, shuffle=True, drop_last=True)
    for step, batch in lenet.batches(fabric.setup_dataloaders(data), settings.data, 1, settings.steps):
        optimizer.zero_grad()
        fabric.backward(lenet.loss_of(model, batch))
        optimizer.step()
        notes.step(step)


if __name__ == "__main__":
    train(settings_of_command())
