"""Measurements of states: resumed bits, how long a save blocks, and DDP and FSDP on one rank with NCCL."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gpu_decoder import DEVICE, GPU_BOUND, IS_GPU, ROOT, Language, seconds_of

from clustertrain.checkpoints.manifest import CheckpointName, Committed
from clustertrain.checkpoints.save import Saver, copy_to_host
from clustertrain.checkpoints.shards import ShardSaver, fill
from clustertrain.training.data.sampling import BatchSizes, Position, TrainOrder
from clustertrain.training.model.building import exchange_if, wrap
from clustertrain.training.model.sharding import shard_model
from clustertrain.training.ranks.distributed import RankInfo
from clustertrain.training.ranks.host import SaveProgress
from clustertrain.training.settings import Compile, TrainSettings
from clustertrain.training.step.optimization import Optimization
from clustertrain.training.step.precision import Precision
from training.tasks import same

_RESUMED = """
import sys
sys.path[:0] = {path!r}
import torch
from torch import nn
from clustertrain.training.ranks.distributed import RankInfo
from clustertrain.training.loop import train
from clustertrain.training.settings import Compile, SaveEvery, TrainSettings
from training.tasks import Classify, MemoryRun
settings, source, target = {settings!r}, {source!r}, {target!r}
torch.use_deterministic_algorithms(settings.pop("deterministic"))
class Convolved(Classify):
    def model(self):
        first = nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()
        return nn.Sequential(*first, nn.Conv2d(16, 1, 3, padding=1), nn.Flatten(), super().model())
run = MemoryRun(0, open(source, "rb").read() if source else None)
rules = {{"epochs": 2, "save_every": SaveEvery(steps=2), "clip_norm": 1.0, "loader_workers": 0, **settings}}
every = TrainSettings(batch_size=4, seed=3, **rules)
train(Convolved(), every, RankInfo(0, 0, 1, torch.device({device!r})), run, {{}})
open(target + ".mid", "wb").write(run.saves.get(16, b""))
open(target, "wb").write(run.saves[max(run.saves)])
"""


def resumes(out: Path) -> dict[str, Any]:
    """Resumed in a new process against uninterrupted, and twice uninterrupted: equal, or the difference."""
    found: dict[str, Any] = {}
    of_cpu, of_gpu = (
        [("fp32", False, True)],
        [("bf16", False, True), ("fp16", False, True), ("bf16", True, True)],
    )
    more = [*of_gpu, ("fp32", False, False), ("bf16", True, False)] if IS_GPU else []
    for precision, is_compiled, deterministic in [*of_cpu, *more]:
        name = f"{precision}{' compiled' * is_compiled}{' deterministic' * deterministic}"
        settings = {
            "precision": precision,
            "compile": Compile() if is_compiled else None,
            "deterministic": deterministic,
        }
        base = str(out / name.replace(" ", "_"))
        starts = [(None, "whole"), (f"{base}.whole.mid", "resumed"), (None, "again")]
        errors = [_start(settings, source, f"{base}.{kind}") for source, kind in starts]
        if any(errors):
            found[name] = errors
            continue
        whole, resumed, again = (torch.load(f"{base}.{kind}", weights_only=True) for _, kind in starts)
        found[name] = {
            "resumed is equal": same(whole, resumed),
            "repeated is equal": same(whole, again),
            "resumed differs by": _distance(whole, resumed),
            "repeated differs by": _distance(whole, again),
        }
    return found


def _start(settings: dict[str, Any], source: str | None, target: str) -> str:
    """Train in a new process; returns the end of its errors if it fails."""
    path = [str(ROOT / "src"), str(ROOT / "tests")]
    code = _RESUMED.format(path=path, settings=settings, source=source, target=target, device=str(DEVICE))
    environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    return done.stderr[-800:] if done.returncode else ""


def _distance(a: Any, b: Any) -> float:
    pairs = ((value.double(), b["model"][name].double()) for name, value in a["model"].items())
    return max(float((one - other).abs().max()) for one, other in pairs)


class _Folder:
    """Writes the files of a checkpoint into a folder in place of a run's storage; without one, nowhere."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def commit(self, files: Any, progress: Any) -> Committed:
        for name, write in files.items() if self._folder is not None else ():
            with (self._folder / name).open("wb") as file:
                write(file)
        return Committed(CheckpointName(0, 1, 0), 0)


def saves() -> dict[str, Any]:
    """How long a save of 8 GiB blocks, against torch's pinned copy, and what reserving costs the steps."""
    size_bytes = (8 << 30) if IS_GPU else (16 << 20)
    live = {str(i): torch.randn(size_bytes // 4 // 64, device=DEVICE) for i in range(64)}
    began = time.perf_counter()
    host = copy_to_host(live)
    found: dict[str, Any] = {"bytes": size_bytes, "first copy, which pins, s": time.perf_counter() - began}
    found["later copies, s"] = [seconds_of(partial(copy_to_host, live, host)) for _ in range(4)]
    found["pageable, s"] = seconds_of(lambda: [tensor.cpu() for tensor in live.values()])
    if IS_GPU:
        pinned = {
            key: torch.empty_like(tensor, device="cpu", pin_memory=True) for key, tensor in live.items()
        }

        def copied() -> None:
            for key, tensor in live.items():
                pinned[key].copy_(tensor, non_blocking=True)

        found["torch's pinned copy, s"] = [seconds_of(copied) for _ in range(4)]
        del pinned
    del host
    saver = Saver(_Folder(None), background=True, on_saved=lambda **fields: None, on_failed=print)
    side = 8192 if IS_GPU else 256
    matrix = torch.randn(side, side, device=DEVICE)

    def step() -> None:
        for _ in range(4):
            torch.mm(matrix, matrix)

    quiet = [seconds_of(step) for _ in range(50)]
    saver.reserve({"model": live})
    began, busy = time.perf_counter(), []
    while saver.wait(0) is not None:
        busy.append(seconds_of(step))
    return found | {
        "reserve_s": time.perf_counter() - began,
        "a step, s": statistics.median(quiet),
        "the longest step meanwhile, s": max(busy, default=0.0),
        "steps meanwhile": len(busy),
    }


def on_one_rank(out: Path) -> dict[str, Any]:
    """DDP and FSDP with NCCL on one rank: compile, accumulation, checkpointing, clipping, parts."""
    backend = {"backend": "nccl", "device_id": DEVICE} if IS_GPU else {"backend": "gloo"}
    dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1, **backend)
    blocks = {"strategy": "fsdp", "activation_checkpointing": "blocks"}
    cases: dict[str, dict[str, Any]] = {
        "ddp": {},
        "fsdp": {"strategy": "fsdp"},
        "fsdp, blocks again": blocks,
        "fsdp, operations again": {**blocks, "activation_checkpointing": "operations"},
    }
    if IS_GPU:
        cases |= {
            "ddp compiled": {"compile": Compile()},
            "fsdp compiled, blocks again": {**blocks, "compile": Compile()},
        }
    found: dict[str, Any] = {}
    losses: dict[str, list[float]] = {}
    rules = {"steps": 10, "batch_size": GPU_BOUND.batch, "accumulate": 2, "clip_norm": 1.0}
    for name, of_case in cases.items():
        torch.compiler.reset()
        settings = TrainSettings(precision="bf16", **rules, **of_case)
        found[name], losses[name] = _trained(settings, out / name.replace(" ", "_"))
    dist.destroy_process_group()
    far = {
        name: max(abs(a - b) for a, b in zip(of, losses["ddp"], strict=True)) for name, of in losses.items()
    }
    return found | {"the largest difference of a loss to ddp": far}


def _trained(settings: TrainSettings, folder: Path) -> tuple[dict[str, Any], list[float]]:
    torch.manual_seed(0)
    task, precision = Language(GPU_BOUND), Precision("bf16", DEVICE)
    model, note = task.model(), ""
    if settings.strategy == "fsdp":
        note = shard_model(task, model, settings, RankInfo(0, 0, 1, DEVICE))
    else:
        model.to(DEVICE)
    data = task.train_data({})
    sizes = BatchSizes.of(settings, 1, len(data))
    order = TrainOrder(settings, sizes, len(data), 0, Position())
    optimization = Optimization(task, model, order, precision.scaler)
    alone = RankInfo(0, 0, 1, DEVICE)
    wrapped = wrap(task, model, settings, alone, world_size=2)  # for one rank it leaves DDP out
    ids = task.train_data({}).tensors[0][: GPU_BOUND.batch].to(DEVICE)
    if IS_GPU:
        torch.cuda.reset_peak_memory_stats()
    losses = []
    for step in range(1, 11 if IS_GPU else 4):
        for is_last in (False, True):
            with exchange_if(is_last, wrapped, settings):
                with precision.autocast():
                    loss = task.loss(wrapped, [ids])
                precision.scaler.backward(loss / 2)
            losses.append(loss.detach())
        optimization.step(step)
    found = {"note": note, "peak_bytes": torch.cuda.max_memory_allocated() if IS_GPU else 0}
    if settings.strategy == "fsdp":
        found["what is read equals what was written"] = _written_and_read(model, optimization, folder)
    return found, [float(loss) for loss in losses]


def _written_and_read(model: Any, optimization: Optimization, folder: Path) -> bool:
    folder.mkdir(exist_ok=True)
    saver = ShardSaver(_Folder(folder), background=True, on_saved=lambda **fields: None, on_failed=print)
    state = {"model": model.state_dict(), **optimization.state()}
    saver.reserve(state)
    saver.save(state, SaveProgress(1, 0, 1, 1, {}, "steps"))
    saver.finish()
    targets = {f"model.{key}": torch.zeros_like(value) for key, value in state["model"].items()}
    fill(folder, targets, [path.name for path in folder.iterdir()])
    read = (
        (value.to_local(), state["model"][key.removeprefix("model.")].to_local())
        for key, value in targets.items()
    )
    return all(torch.equal(found, written) for found, written in read)
