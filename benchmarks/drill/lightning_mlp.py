"""A Lightning program that saves every five steps and continues from its last checkpoint."""

import os
import time
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FOLDER = Path(os.environ["CLUSTERTRAIN_CHECKPOINT_DIR"])


class Mlp(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))

    def training_step(self, batch, number):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        print(f"step {self.global_step} loss: {loss.item():.8f}", flush=True)
        time.sleep(0.05)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)]


lightning.seed_everything(0)
x = torch.randn(128, 8)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
save = ModelCheckpoint(FOLDER, filename="{step}", every_n_train_steps=5, save_top_k=-1, save_last=True)
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=1,
    max_epochs=3,
    callbacks=[save],
    logger=False,
    default_root_dir=FOLDER,
    enable_progress_bar=False,
)
last = FOLDER / "last.ckpt"
trainer.fit(Mlp(), loader, ckpt_path=last if last.exists() else None, weights_only=False)
