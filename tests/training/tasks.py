"""Tasks, and a launcher that keeps everything in memory, for the loop's tests."""

import copy
import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from clustertrain import Task
from clustertrain.training.data.sampling import BatchSizes, Position, TrainOrder
from clustertrain.training.evaluation import Evaluation
from clustertrain.training.loop import TrainResult, train
from clustertrain.training.ranks.distributed import RankInfo
from clustertrain.training.ranks.dtensors import map_state, whole
from clustertrain.training.ranks.host import Requests, SaveProgress
from clustertrain.training.settings import TrainSettings
from clustertrain.training.step.precision import Precision

SAMPLES = 54  # no tail of one sample per rank, which BatchNorm refuses


class Jittered(Dataset):
    """Samples with their ids; what is added to them is random, from all three generators."""

    def __init__(self, n: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(n, 6, generator=generator)
        self.y = torch.randint(0, 3, (n,), generator=generator)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        return self.x[i] + 0.1 * random.random() + 0.1 * torch.randn(6), self.y[i], i


class Net(nn.Module):
    """Wide enough that DDP's buckets change their order after the first step; with BatchNorm and dropout."""

    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(6, 33), nn.BatchNorm1d(33), nn.ReLU(), nn.Dropout(dropout), nn.Linear(33, 17), nn.ReLU()
        )
        self.head = nn.Linear(17, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x))


class Classify(Task):
    """Momentum, a scheduler, BatchNorm, dropout and random samples; remembers the ids it was given."""

    def __init__(self, n: int = SAMPLES) -> None:
        self.n = n
        self.ids: list[list[int]] = []

    def model(self) -> nn.Module:
        return Net()

    def train_data(self, data: Any) -> Any:
        return Jittered(self.n)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        x, y, ids = batch
        if torch.is_grad_enabled():  # a pass of a step, or one that settles the buckets
            self.ids.append(ids.tolist())
        return functional.cross_entropy(model(x), y)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)

    def scheduler(self, optimizer: torch.optim.Optimizer, total_steps: int) -> Any:
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps + 1)


class Plain(Task):
    """Linear regression, without anything random."""

    def __init__(self, n: int = SAMPLES, bad: int | None = None, lr: float = 0.1) -> None:
        self.n, self.bad, self.lr = n, bad, lr

    def model(self) -> nn.Module:
        return nn.Linear(4, 1)

    def train_data(self, data: Any) -> Any:
        x = torch.randn(self.n, 4, generator=torch.Generator().manual_seed(2))
        y = x.sum(1, keepdim=True)
        if self.bad is not None:
            y[self.bad] = float("nan")
        return TensorDataset(x, y)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        x, y = batch
        return functional.mse_loss(model(x), y)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.lr)


def plain(**methods: Callable[..., Any]) -> Plain:
    """A Plain with other methods, which take their arguments without `self`."""
    task = Plain()
    vars(task).update(methods)
    return task


class MemoryRun:
    """A launcher in memory: each save is bytes, as a file would be."""

    def __init__(
        self, rank: int, state: bytes | None = None, asked: Callable[[int], tuple[bool, bool]] | None = None
    ):
        self.rank = rank
        self.saves_in_background = True
        self.state = state
        self.asked = asked
        self.calls = 0
        self.saves: dict[int, bytes] = {}
        self.progress: list[SaveProgress] = []
        self.logs: list[dict[str, Any]] = []
        self.images_of_steps: dict[int, dict[str, torch.Tensor]] = {}
        self.phases: list[tuple[str, int]] = []
        self.reserved: list[dict[str, Any]] = []
        self.in_memory: dict[int, bytes] = {}
        self.lacks = ""
        self.finished = False
        self.trace = Path("/nowhere")  # its profile

    def requests(self) -> Requests:
        self.calls += 1
        return Requests(*self.asked(self.calls)) if self.asked else Requests()

    def restore(self) -> dict[str, Any] | None:
        if self.state is None:
            return None
        return torch.load(io.BytesIO(self.state), map_location="cpu", weights_only=True)

    def reserve(self, state: dict[str, Any]) -> None:
        self.reserved.append(copy.deepcopy(map_state(state, lambda path, tensor: whole(tensor))))

    def fill(self, tensors: dict[str, torch.Tensor]) -> None:
        raise AssertionError("a state in memory is whole")

    def save(self, state: dict[str, Any], progress: SaveProgress) -> None:
        state = map_state(state, lambda path, tensor: whole(tensor))
        file = io.BytesIO()
        torch.save(state, file)
        self.saves[progress.step] = file.getvalue()
        self.progress.append(progress)

    def wait_for_write(self, timeout_s: float) -> int | None:
        return None

    def is_writing(self) -> bool:
        return False

    def memory_lacks(self, state: dict[str, Any]) -> str:
        return self.lacks

    def save_in_memory(self, state: dict[str, Any], progress: SaveProgress) -> None:
        file = io.BytesIO()
        torch.save(map_state(state, lambda path, tensor: whole(tensor)), file)
        self.in_memory[progress.step] = file.getvalue()

    def log(self, record: dict[str, Any]) -> None:
        self.logs.append(record)

    def images(self, step: int, images: dict[str, torch.Tensor]) -> None:
        self.images_of_steps[step] = images

    def phase(self, name: str, step: int) -> None:
        self.phases.append((name, step))

    def profile(self) -> tuple[Path, str]:
        return self.trace, str(self.trace)

    def finish(self) -> None:
        self.finished = True


class Outcome:
    """One rank's view of a run that ended."""

    def __init__(
        self, result: TrainResult, run: MemoryRun, task: Task, rank_info: RankInfo, strategy: str
    ) -> None:
        self.result = result
        self.saves, self.progress, self.logs, self.phases = run.saves, run.progress, run.logs, run.phases
        self.reserved, self.images_of_steps = run.reserved, run.images_of_steps
        passes = {"ddp": 2, "fsdp": 1}[strategy] if rank_info.world_size > 1 else 0
        self.ids = getattr(task, "ids", [])[passes:]  # the first ones settle the buckets

    def state(self, step: int) -> dict[str, Any]:
        return torch.load(io.BytesIO(self.saves[step]), weights_only=True)

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [record for record in self.logs if record["kind"] == kind]

    def logged(self, kind: str, key: str = "loss") -> list[Any]:
        """What the records of a kind have as `key`."""
        return [record[key] for record in self.of_kind(kind)]

    @property
    def lrs(self) -> list[float]:
        return self.logged("train", "lr")

    def weights(self) -> dict[str, torch.Tensor]:
        return self.state(self.result.step)["model"]


def run_task(
    rank_info: RankInfo, task: Task, settings: TrainSettings, state: bytes | None = None, asked: Any = None
) -> Outcome:
    run = MemoryRun(rank_info.rank, state, asked)
    result = train(task, settings, rank_info, run, {})
    assert run.finished
    return Outcome(result, run, task, rank_info, settings.strategy)


def evaluation_of(
    rank_info: RankInfo,
    task: Task,
    model: nn.Module,
    dataset: Any,
    *,
    batch_size: int = 2,
    precision: str = "fp32",
) -> Evaluation:
    settings = TrainSettings(steps=1, batch_size=batch_size)
    order = TrainOrder(settings, BatchSizes(batch_size, rank_info.world_size, 1), 1, 0, Position())
    of_device = Precision(precision, rank_info.device)
    return Evaluation(task, model, dataset, order, precision=of_device, rank_info=rank_info)


def same(one: Any, other: Any) -> bool:
    """Whether nested states are equal to the last bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return one == other
