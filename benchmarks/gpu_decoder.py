"""The decoder that the measurements of gpu.py train, and what they share: device, clock, timed runs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import torch  # noqa: E402  the modules of this checkout come first
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from clustertrain import Task  # noqa: E402
from clustertrain.training.ranks.distributed import RankInfo  # noqa: E402
from training.tasks import MemoryRun  # noqa: E402

IS_GPU = os.environ.get("GPU_BENCH_CPU") != "1"
DEVICE = torch.device("cuda", 0) if IS_GPU else torch.device("cpu")
ALONE = RankInfo(0, 0, 1, DEVICE)


@dataclass(frozen=True)
class Shape:
    """Of a decoder and its batches."""

    width: int
    layers: int
    tokens: int
    batch: int


GPU_BOUND = Shape(1024, 12, 512, 16) if IS_GPU else Shape(64, 2, 16, 4)
LAUNCH_BOUND = Shape(256, 12, 64, 8) if IS_GPU else Shape(64, 2, 8, 2)
WORDS = 8192


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        samples, tokens, width = x.shape
        heads = self.qkv(self.before(x)).view(samples, tokens, 3, max(1, width // 64), -1)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(samples, tokens, width))
        return x + self.mlp(self.after(x))


class Decoder(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, shape.width)
        self.layers = nn.ModuleList(Layer(shape.width) for _ in range(shape.layers))
        self.head = nn.Linear(shape.width, WORDS)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Language(Task):
    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def model(self) -> nn.Module:
        return Decoder(self.shape)

    def blocks(self, model: Any) -> Any:
        return list(model.layers)

    def train_data(self, data: Any) -> TensorDataset:
        size = (8 * self.shape.batch, self.shape.tokens + 1)
        return TensorDataset(torch.randint(0, WORDS, size, generator=torch.Generator().manual_seed(1)))

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        ids = batch[0]
        return functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=IS_GPU)


class Timed(MemoryRun):
    """Notes the seconds at the end of step `warm` and of step `steps`, before the save that follows it; `at`
    is called after each step."""

    def __init__(self, warm: int, steps: int, at: Callable[[int], object] = lambda step: None) -> None:
        super().__init__(0)
        self.warm, self.steps, self.at = warm, steps, at
        self.seconds: dict[int, float] = {}

    def phase(self, name: str, step: int) -> None:
        if name in ("step", "usual_step"):
            self.at(step)
            if step in {self.warm, self.steps} - self.seconds.keys():  # the phase begins again after a save
                synchronize()
                self.seconds[step] = time.perf_counter()

    def reserve(self, state: Any) -> None:
        pass

    def save(self, state: Any, progress: Any) -> None:
        pass

    @property
    def step_s(self) -> float:
        return (self.seconds[self.steps] - self.seconds[self.warm]) / (self.steps - self.warm)


def synchronize() -> None:
    if IS_GPU:
        torch.cuda.synchronize()


def seconds_of(function: Callable[[], object]) -> float:
    synchronize()
    began = time.perf_counter()
    function()
    synchronize()
    return time.perf_counter() - began
