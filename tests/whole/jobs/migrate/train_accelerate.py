"""A loop with Accelerate, as in its examples. Nothing here is written for clustertrain.

accelerate launch --cpu --num_processes 2 train_accelerate.py --output_dir checkpoints
"""

import argparse
import json
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--resume", action="store_true", help="from the newest checkpoint in the folder")
    args = parser.parse_args()

    accelerator = Accelerator()
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.arange(16), torch.rand(16, 1))
    loader = DataLoader(data, batch_size=4, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    first_epoch = 0
    if args.resume:
        newest = max(
            args.output_dir.glob("epoch_*"), key=lambda folder: int(folder.name.removeprefix("epoch_"))
        )
        accelerator.load_state(newest)
        first_epoch = int(newest.name.removeprefix("epoch_"))
    samples = []
    for epoch in range(first_epoch, args.epochs):
        loader.set_epoch(epoch)
        for ids, x in loader:
            samples += ids.tolist()
            loss = (model(x) - 2 * x).square().mean()
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        accelerator.save_state(args.output_dir / f"epoch_{epoch + 1}")
    seen = {
        "rank": accelerator.process_index,
        "world_size": accelerator.num_processes,
        "samples": sorted(samples),
        "epochs": [first_epoch, args.epochs],
        "weight": accelerator.unwrap_model(model).weight.item(),
    }
    print(json.dumps(seen))
    accelerator.end_training()


if __name__ == "__main__":
    main()
