"""Lightning's Trainer, without the logs, checkpoints and bars that the others do not write either."""

from typing import Any

import lenet
import lightning
import torch
from torch.utils.data import DataLoader
from training_settings import BATCH_SIZE, RANKS, Settings, settings_of_command


class LeNet(lightning.LightningModule):
    """Notes a step when the optimizer has made it."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.model, self._settings = lenet.make_model(), settings

    def on_train_start(self) -> None:
        self._notes = lenet.Notes(self._settings.notes, self.global_rank)

    def training_step(self, batch: Any) -> torch.Tensor:
        return lenet.loss_of(self.model, batch)

    def on_train_batch_end(self, *_: Any) -> None:
        self._notes.step(self.global_step)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return lenet.make_optimizer(self.model)


if __name__ == "__main__":
    settings = settings_of_command()
    data = DataLoader(lenet.make_data(settings.data), BATCH_SIZE, shuffle=True, drop_last=True)
    lightning.Trainer(
        accelerator="cpu",
        devices=RANKS,
        strategy="ddp",
        max_steps=settings.steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=settings.notes,
    ).fit(LeNet(settings), data)
