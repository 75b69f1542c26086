"""A step of the kit's loop against a loop written by hand, in turns, in one process on one GPU."""

import statistics
import time
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from clustertrain import Task
from clustertrain.training.loop import train
from clustertrain.training.settings import Compile, TrainSettings
from gpu.suite import DEVICE, IS_GPU, needs_a_compiler, needs_a_gpu, needs_cuda, synchronize
from training.tasks import MemoryRun

pytestmark = [pytest.mark.gpu, needs_a_gpu]
WARM, STEPS, ROUNDS = (110, 310, 7) if IS_GPU else (5, 25, 2)  # the loop looks at the first 100 losses
MOST = 1.02  # of the hand-written loop's time


@dataclass(frozen=True)
class Size:
    """Of a model and its batches: a step is bound by the GPU, or by the launches of many small kernels."""

    width: int
    layers: int
    batch: int


SIZES = {
    "bound by the GPU": Size(4096, 12, 4096) if IS_GPU else Size(64, 3, 32),
    "bound by launches": Size(256, 48, 64) if IS_GPU else Size(16, 3, 8),
}


class Wide(Task):
    def __init__(self, size):
        self.size = size

    def model(self):
        width, layers = self.size.width, self.size.layers
        hidden = [layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.GELU())]
        return nn.Sequential(*hidden, nn.Linear(width, 16))

    def train_data(self, data):
        generator, count = torch.Generator().manual_seed(1), 8 * self.size.batch
        x = torch.randn(count, self.size.width, generator=generator)
        return TensorDataset(x, torch.randint(0, 16, (count,), generator=generator))

    def loss(self, model, batch):
        x, y = batch
        return functional.cross_entropy(model(x), y)

    def optimizer(self, model):
        return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=IS_GPU)


class Clock:
    """Seconds of a step, from the end of step WARM to that of step STEPS, before the save that follows it."""

    def __init__(self):
        self.ended = {}

    def after(self, step):
        if step in {WARM, STEPS} - self.ended.keys():  # the phase begins again after a save
            synchronize()
            self.ended[step] = time.perf_counter()

    @property
    def step_s(self):
        return (self.ended[STEPS] - self.ended[WARM]) / (STEPS - WARM)


class TimedRun(MemoryRun):
    def __init__(self, clock):
        super().__init__(0)
        self.clock = clock

    def phase(self, name, step):
        if name in ("step", "usual_step"):
            self.clock.after(step)

    def reserve(self, state):
        pass

    def save(self, state, progress):
        pass


def by_the_kit(gpu, size, is_compiled):
    torch.compiler.reset()  # each run has a model of its own, and torch compiles at most eight
    clock = Clock()
    settings = TrainSettings(
        steps=STEPS,
        batch_size=size.batch,
        precision="bf16",
        compile=Compile() if is_compiled else None,
        log_every=50,
        loader_workers=0,
    )
    train(Wide(size), settings, gpu, TimedRun(clock), {})
    return clock.step_s


def by_hand(gpu, size, is_compiled):
    """What an engineer writes for one GPU, with batches as the kit makes them: rows of a tensor, pinned."""
    torch.compiler.reset()
    torch.manual_seed(0)
    clock, task = Clock(), Wide(size)
    model = task.model().to(DEVICE)
    optimizer, called = task.optimizer(model), model
    if is_compiled:
        called = torch.compile(model, dynamic=False)
    tensors = task.train_data({}).tensors
    for step in range(1, STEPS + 1):
        ids = torch.randint(0, len(tensors[0]), (size.batch,))
        batch = [tensor[ids] for tensor in tensors]
        if IS_GPU:
            batch = [tensor.pin_memory().to(DEVICE, non_blocking=True) for tensor in batch]
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss = task.loss(called, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0:
            loss.item()
        clock.after(step)
    return clock.step_s


@pytest.mark.parametrize("is_compiled", [False, pytest.param(True, marks=[needs_cuda, needs_a_compiler])])
@pytest.mark.parametrize("bound", SIZES)
def test_a_step_takes_no_longer_than_in_a_loop_written_by_hand(gpu, row, bound, is_compiled):
    kit, hand = [], []
    for turn in range(ROUNDS):
        for loop, into in ((by_the_kit, kit), (by_hand, hand))[:: 1 if turn % 2 else -1]:
            into.append(loop(gpu, SIZES[bound], is_compiled))
    kit_s, hand_s = statistics.median(kit), statistics.median(hand)
    spread = (max(kit) - min(kit)) / kit_s
    row(
        f"a step {bound}{', compiled' if is_compiled else ''}, kit against by hand",
        f"s, medians of {ROUNDS}",
        kit=kit_s,
        hand=hand_s,
        ratio=kit_s / hand_s,
        spread=spread,
    )
    if IS_GPU:
        assert kit_s <= MOST * hand_s, f"kit {kit}, hand {hand}"
