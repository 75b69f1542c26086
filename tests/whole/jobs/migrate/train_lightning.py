"""A LightningModule and a Trainer. Nothing here is written for clustertrain.

torchrun --nproc-per-node 2 train_lightning.py --devices 2 --dir checkpoints
"""

import argparse
import json

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Line(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.samples = []

    def on_train_start(self):
        self.first_epoch = self.current_epoch

    def training_step(self, batch, index):
        ids, x = batch
        self.samples += ids.tolist()
        return (self.layer(x) - 2 * x).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", default="auto")
    parser.add_argument("--num_nodes", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--dir", required=True)
    parser.add_argument("--ckpt_path")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = Line()
    data = TensorDataset(torch.arange(16), torch.rand(16, 1))
    trainer = Trainer(
        devices=args.devices,
        num_nodes=args.num_nodes,
        max_epochs=args.epochs,
        callbacks=[ModelCheckpoint(args.dir, save_last=True)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(data, batch_size=4, shuffle=True), ckpt_path=args.ckpt_path)
    seen = {
        "rank": trainer.global_rank,
        "world_size": trainer.world_size,
        "samples": sorted(model.samples),
        "epochs": [model.first_epoch, trainer.current_epoch],
        "weight": model.layer.weight.item(),
    }
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
