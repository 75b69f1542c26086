"""A torchrun script that resumes from its own checkpoint; rank 1 is killed once, after six steps."""

import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist

STEPS, KILLED_AFTER = 10, 6


def main():
    dist.init_process_group("gloo")
    folder = Path(os.environ["CLUSTERTRAIN_CHECKPOINT_DIR"])
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step, saved = 0, folder / "last.pt"
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        model.load_state_dict(state["model"])
        step = state["step"]
    samples = torch.arange(8.0).reshape(2, 4) + dist.get_rank()
    while step < STEPS:
        loss = model(samples).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item()!r}")
            torch.save({"model": model.state_dict(), "step": step}, folder / "next.pt")
            (folder / "next.pt").replace(saved)
        dist.barrier()
        if step == KILLED_AFTER and dist.get_rank() == 1 and os.environ["CLUSTERTRAIN_RESTART"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
