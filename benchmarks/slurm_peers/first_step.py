"""What all sides of slurm_start.py and kube_start.py train: a small convolutional network on
random pictures, data parallel.

clustertrain runs `train` by `function: first_step:train`; run as a program, this file hands the same function
to a plain TorchTrainer on the Ray cluster that is there.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 20


def train(config: dict[str, Any]) -> None:
    """A few steps; rank 0 notes in the file `config["note"]` when the first optimizer step was done."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 5), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.LazyLinear(64), nn.Linear(64, 10)
    )
    images, labels = torch.rand(64, 3, 32, 32), torch.randint(10, (64,))
    model(images)  # gives the lazy layer its shape
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for step in range(STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        if step == 0 and dist.get_rank() == 0:
            _note(Path(config["note"]), time.time())


def _note(path: Path, moment: float) -> None:
    path.with_suffix(".new").write_text(repr(moment))
    path.with_suffix(".new").rename(path)


def main(note: str, workers: str, storage: str) -> None:
    """On the Ray cluster that is there: one worker on each node, by default settings."""
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    ray.init(address="auto")
    TorchTrainer(
        train,
        train_loop_config={"note": note},
        scaling_config=ScalingConfig(num_workers=int(workers)),
        run_config=RunConfig(name="first-step", storage_path=str(Path(storage).absolute())),
    ).fit()


if __name__ == "__main__":
    main(*sys.argv[1:])
