"""A function with its own training loop; clustertrain provides ranks, data, checkpoints and stop requests."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from clustertrain import session


def train(config):
    s = session.current()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, config["hidden"]), nn.Tanh(), nn.Linear(config["hidden"], 1)).to(
        s.device
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    start = 0
    if (state := s.restore()) is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["step"]
    ddp = DistributedDataParallel(model)
    for step in range(start + 1, config["steps"] + 1):
        # Every rank draws other samples; a step that is repeated after a restart draws the same ones.
        generator = torch.Generator().manual_seed(step * s.world_size + s.rank)
        x = (torch.rand(64, 1, generator=generator) * 6 - 3).to(s.device)
        loss = nn.functional.mse_loss(ddp(x), torch.sin(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            s.log(step=step, loss=loss.item())
        asked = s.step_done(step)
        if asked.save or asked.stop or step == config["steps"]:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            s.save(step=step, state=state, metrics={"loss": loss.item()})
        if asked.stop:
            return
