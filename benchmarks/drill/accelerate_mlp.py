"""An Accelerate program: save_state every five steps, load_state and skip_first_batches at its start."""

import os
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FOLDER = Path(os.environ["CLUSTERTRAIN_CHECKPOINT_DIR"])
set_seed(0)
accelerator = Accelerator(cpu=True)
x = torch.randn(128, 8)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
saved = sorted((int(each.name.partition("-")[2]) for each in FOLDER.glob("step-*")), reverse=True)
done = saved[0] if saved else 0
if done:
    accelerator.load_state(str(FOLDER / f"step-{done}"))
for epoch in range(done // len(loader), 3):
    skipped = done % len(loader) if epoch == done // len(loader) else 0
    batches = accelerator.skip_first_batches(loader, skipped) if skipped else loader
    for number, (inputs, targets) in enumerate(batches, skipped):
        loss = nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        step = epoch * len(loader) + number + 1
        print(f"step {step} loss: {loss.item():.8f}", flush=True)
        if step % 5 == 0:
            accelerator.save_state(str(FOLDER / f"step-{step}"))
        time.sleep(0.05)
