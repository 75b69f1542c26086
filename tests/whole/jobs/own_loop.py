"""A function with its own loop: counts, saves, stops on request, and continues from there."""

import time
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from clustertrain import session


def train(config):
    s = session.current()
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1).to(s.device)
    state = s.restore()
    start = 0
    if state is not None:
        model.load_state_dict(state["model"])
        start = state["step"]
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    s.print(f"starting at step {start} of {config['steps']} with {s.world_size} workers")
    for step in range(start + 1, config["steps"] + 1):
        x = torch.full((2, 4), float(step + s.rank), device=s.device)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0 if Path(config.get("fast", "none")).exists() else config["step_s"])
        s.log(step=step, loss=loss.item())
        requests = s.step_done(step)
        if requests.save or requests.stop:
            s.save(step=step, state={"model": model.module.state_dict()}, metrics={"loss": loss.item()})
        if requests.stop:
            return
