"""One rank of a training whose weights alone are larger than its memory limit. Started by test_fsdp_memory.

python -m training.large_model STRATEGY
"""

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from clustertrain import Task
from clustertrain.training.loop import train
from clustertrain.training.ranks.host import SaveProgress
from clustertrain.training.settings import TrainSettings
from training.ranks import rank_of_torchrun
from training.tasks import MemoryRun

WIDTH, LAYERS = 3072, 64  # from 32 MiB on glibc returns freed memory at once
WEIGHTS_BYTES = 4 * LAYERS * WIDTH * (WIDTH + 1)


class Deep(Task):
    """Layers of which only the last is trained: gradients and the optimizer's state are small."""

    def model(self) -> nn.Module:
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
        model.requires_grad_(False)[-1].requires_grad_(True)
        return model

    def init_weights(self, module: nn.Module, name: str) -> None:
        module.reset_parameters()

    def train_data(self, data: Any) -> Any:
        return TensorDataset(torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(1)))

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return functional.mse_loss(model(batch[0]), batch[0])

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)


class Unsaved(MemoryRun):
    def reserve(self, state: dict[str, Any]) -> None:
        """Nothing is kept."""

    def save(self, state: dict[str, Any], progress: SaveProgress) -> None:
        """Nothing is saved."""


def main(strategy: str) -> None:
    torch.set_num_threads(1)
    rank_info = rank_of_torchrun()
    run = Unsaved(rank_info.rank)
    settings = TrainSettings(steps=2, batch_size=2, log_every=1, strategy=strategy)
    train(Deep(), settings, rank_info, run, {})
    for record in run.logs:
        if record["kind"] == "train":
            print(f"loss {record['loss']:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
