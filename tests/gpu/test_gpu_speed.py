"""A step of the kit's loop against a loop written by hand, in turns, in one process on one GPU."""

from __future__ import annotations

import statistics
import time

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from clustertrain import Task
from clustertrain.training.loop import train
from clustertrain.training.settings import TrainSettings
from gpu.suite import DEVICE, IS_GPU, needs_a_gpu, synchronize
from training.tasks import MemoryRun

pytestmark = [pytest.mark.gpu, needs_a_gpu]
WIDTH, LAYERS, BATCH = (2048, 12, 512) if IS_GPU else (64, 3, 32)
WARM, STEPS, ROUNDS = (20, 220, 7) if IS_GPU else (5, 25, 2)
MOST = 1.02  # of the hand-written loop's time


class Wide(Task):
    def model(self):
        hidden = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
        return nn.Sequential(*hidden, nn.Linear(WIDTH, 16))

    def train_data(self, data):
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(8 * BATCH, WIDTH, generator=generator)
        return TensorDataset(x, torch.randint(0, 16, (8 * BATCH,), generator=generator))

    def loss(self, model, batch):
        x, y = batch
        return functional.cross_entropy(model(x), y)

    def optimizer(self, model):
        return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=IS_GPU)


class Clock:
    """Seconds of a step, from the end of step WARM to the end of step STEPS."""

    def after(self, step):
        if step in (WARM, STEPS):
            synchronize()
            if step == WARM:
                self.began = time.perf_counter()
            else:
                self.step_s = (time.perf_counter() - self.began) / (STEPS - WARM)


class TimedRun(MemoryRun):
    def __init__(self, clock):
        super().__init__(0)
        self.clock = clock

    def phase(self, name, step):
        if name == "step":
            self.clock.after(step)


def by_the_kit(gpu):
    clock = Clock()
    settings = TrainSettings(steps=STEPS, batch_size=BATCH, precision="bf16", log_every=50)
    train(Wide(), settings, gpu, TimedRun(clock), {})
    return clock.step_s


def by_hand(gpu):
    """What a good tutorial writes for one GPU."""
    torch.manual_seed(0)
    clock, task = Clock(), Wide()
    model = task.model().to(DEVICE)
    optimizer = task.optimizer(model)
    dataset, step = task.train_data({}), 0
    while step < STEPS:
        loader = DataLoader(dataset, BATCH, shuffle=True, drop_last=True, pin_memory=IS_GPU)
        for batch in loader:
            x, y = (tensor.to(DEVICE, non_blocking=True) for tensor in batch)
            with torch.autocast(DEVICE.type, torch.bfloat16):
                loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            if step % 50 == 0:
                loss.item()
            clock.after(step)
            if step == STEPS:
                break
    return clock.step_s


def test_a_step_takes_no_longer_than_in_a_loop_written_by_hand(gpu, row):
    kit, hand = [], []
    for turn in range(ROUNDS):
        for loop, into in ((by_the_kit, kit), (by_hand, hand))[:: 1 if turn % 2 else -1]:
            into.append(loop(gpu))
    kit_s, hand_s = statistics.median(kit), statistics.median(hand)
    spread = (max(kit) - min(kit)) / kit_s
    row(
        "a step of the kit against a loop by hand",
        f"s, medians of {ROUNDS}",
        kit=kit_s,
        hand=hand_s,
        ratio=kit_s / hand_s,
        spread=spread,
    )
    if IS_GPU:
        assert kit_s <= MOST * hand_s, f"kit {kit}, hand {hand}"
