"""What a step costs because its state is kept in memory for the death of another rank.

    python benchmarks/last_step.py [--steps 1000]

Times what the loop does for it after each step: copies random states, buffers and losses into a mapped file.
The models have no buffers, and as many as ResNet-50: 53 layers of BatchNorm. Between two steps 64 MiB are
written, so that the caches of the processor hold as little of it as in a training.

Of FSDP it times the copy of the whole state of a rank: 4 million weights in 48 tensors, with Adam.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from clustertrain.training.copied_step import CopiedStep
from clustertrain.training.last_step import LastStep
from clustertrain.training.ranks.distributed import RankInfo
from clustertrain.training.ranks.host import SaveProgress
from clustertrain.training.step.running_loss import Meter

WIDTHS = [64] * 7 + [256] * 4 + [128] * 8 + [512] * 5 + [256] * 12 + [1024] * 7 + [512] * 6 + [2048] * 4


def microseconds(model: nn.Module, steps: int, file: Path) -> list[float]:
    """Of each step."""
    info = RankInfo(0, 0, 1, torch.device("cpu"))
    meter = Meter(info, cast(Any, None))
    kept = LastStep(model, meter, info, 11, cast(Any, None))
    kept.open(file, 1 << 30)
    loss, activations, times = torch.tensor(1.0), torch.zeros(16 << 20), list[float]()
    for step in range(1, steps + 1):
        activations.add_(1)
        meter.add(step, loss, 32)
        began = time.perf_counter()
        kept.changes()
        kept.keep_own_part(2 * step)
        kept.completed(2 * step)
        times.append((time.perf_counter() - began) * 1e6)
        if step % 10 == 0:  # a line of the log
            meter.flush()
    return times


def milliseconds_of_shard(steps: int, file: Path) -> tuple[list[float], int]:
    """Of each copy of the state of a rank of FSDP, and the bytes of the state."""
    info = RankInfo(0, 0, 1, torch.device("cpu"))
    model = nn.Sequential(*(nn.Linear(409, 409) for _ in range(24)))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 409)).sum().backward()
    optimizer.step()
    rest = {"saved_step": 0, "flushed_step": 0}

    def state() -> tuple[SaveProgress, dict[str, Any]]:
        tensors = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        return SaveProgress(1, 0, 0, 1, {}, ""), {**tensors, **rest}

    meter = Meter(info, cast(Any, None))
    kept = CopiedStep(model, meter, info, 11, state, every=1, note=print)
    kept.open(file, 1 << 30)
    activations, times = torch.zeros(16 << 20), list[float]()
    for step in range(1, steps + 1):
        activations.add_(1)
        began = time.perf_counter()
        kept.completed(2 * step)
        times.append((time.perf_counter() - began) * 1e3)
    return times, 3 * sum(weight.nbytes for weight in model.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    models = {
        "no buffers, 10 parameters": nn.Sequential(*(nn.Linear(8, 8) for _ in range(5))),
        "buffers as ResNet-50": nn.Sequential(*(nn.BatchNorm2d(width) for width in WIDTHS)),
    }
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for name, model in models.items():
            times = microseconds(model, steps, Path(folder, name))
            low, middle, high = statistics.quantiles(times, n=20)[::9][:3]
            print(f"{name:28} median {middle:5.0f} µs, 5 % {low:5.0f} µs, 95 % {high:5.0f} µs of a step")
        times, size_bytes = milliseconds_of_shard(max(2, steps // 10), Path(folder, "shard"))
        low, middle, high = statistics.quantiles(times, n=20)[::9][:3]
        name = f"rank of FSDP, {size_bytes / 2**20:.0f} MiB"
        print(f"{name:28} median {middle:5.1f} ms, 5 % {low:5.1f} ms, 95 % {high:5.1f} ms of a copy")


if __name__ == "__main__":
    main()
