"""Measurements of steps: implicit synchronizations, a loop written by hand."""

from __future__ import annotations

import statistics
import warnings
from pathlib import Path
from typing import Any

import torch
from gpu_decoder import ALONE, DEVICE, GPU_BOUND, IS_GPU, LAUNCH_BOUND, Language, Shape, Timed

from clustertrain.training.loop import train
from clustertrain.training.settings import Compile, TrainSettings


def synchronizations() -> dict[str, Any]:
    """Per step, with their lines, between two lines of the log. They are counted after the first 100 batches,
    whose losses the loop looks at."""
    found = {}
    cases = [("fp32", None), ("bf16", 1.0), *([("fp16", 1.0)] if IS_GPU else [])]
    warm, steps = (110, 130) if IS_GPU else (2, 4)
    for precision, clip_norm in cases:

        def at(step: int) -> None:
            if IS_GPU and step in (warm, steps):
                torch.cuda.set_sync_debug_mode("warn" if step == warm else "default")

        settings = TrainSettings(
            steps=steps + 5,
            batch_size=LAUNCH_BOUND.batch,
            loader_workers=0,
            precision=precision,
            clip_norm=clip_norm,
            log_every=1000,
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            train(Language(LAUNCH_BOUND), settings, ALONE, Timed(warm, steps, at), {})
        lines = [f"{Path(w.filename).name}:{w.lineno}" for w in caught if "synchroniz" in str(w.message)]
        of_lines = {line: lines.count(line) for line in dict.fromkeys(lines)}
        found[precision] = {"per_step": len(lines) / (steps - warm), "lines": of_lines}
    return found


def against_a_loop_by_hand() -> dict[str, Any]:
    """After the first 100 batches, whose losses the loop looks at."""
    warm, steps, rounds = (110, 230, 3) if IS_GPU else (2, 6, 1)
    found = {}
    for name, shape in {"bound by the GPU": GPU_BOUND, "bound by launches": LAUNCH_BOUND}.items():
        for is_compiled in (False, True) if IS_GPU else (False,):
            sides = {"kit": _kit_step_s, "hand": _hand_step_s}
            times: dict[str, list[float]] = {side: [] for side in sides}
            for turn in range(rounds):
                for side in list(sides)[:: 1 if turn % 2 else -1]:
                    torch.compiler.reset()  # torch compiles at most eight models of a kind
                    times[side].append(sides[side](shape, is_compiled, warm, steps))
            kit, hand = (statistics.median(times[side]) for side in sides)
            row = {"kit_ms": 1e3 * kit, "hand_ms": 1e3 * hand, "ratio": kit / hand, "all_s": times}
            found[f"{name}{', compiled' * is_compiled}"] = row
    return found


def _kit_step_s(shape: Shape, is_compiled: bool, warm: int, steps: int) -> float:
    run = Timed(warm, steps)
    settings = TrainSettings(
        steps=steps,
        batch_size=shape.batch,
        precision="bf16",
        compile=Compile() if is_compiled else None,
        log_every=50,
        loader_workers=0,
    )
    train(Language(shape), settings, ALONE, run, {})
    return run.step_s


def _hand_step_s(shape: Shape, is_compiled: bool, warm: int, steps: int) -> float:
    torch.manual_seed(0)
    task, clock = Language(shape), Timed(warm, steps)
    model = task.model().to(DEVICE)
    called = torch.compile(model, dynamic=False) if is_compiled else model
    optimizer, ids = task.optimizer(model), task.train_data({}).tensors[0]
    for step in range(1, steps + 1):
        batch = ids[torch.randint(0, len(ids), (shape.batch,))]
        batch = batch.pin_memory().to(DEVICE, non_blocking=True) if IS_GPU else batch
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss = task.loss(called, [batch])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0:
            loss.item()
        clock.phase("usual_step", step)
    return clock.step_s
