"""A torchrun script that saves, and with --resume also loads what it saved."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
file = Path(os.environ["CLUSTERTRAIN_CHECKPOINT_DIR"]) / "last.pt"
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
begin = 0
if "--resume" in sys.argv and file.exists():
    state = torch.load(file, weights_only=True)
    model.load_state_dict(state["model"])
    begin = state["epoch"]
    optimizer.load_state_dict(state["optimizer"])
for epoch in range(begin, 9):
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(epoch))
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
    torch.save(state, file.with_suffix(".tmp"))
    file.with_suffix(".tmp").rename(file)
    print(f"epoch {epoch} loss: {loss.item():.8f}", flush=True)
    time.sleep(0.3)
dist.destroy_process_group()
