"""The programs that train the same, and what is measured of them."""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml
from peers.training_settings import BATCH_SIZE, RANKS, Settings

from comparison.figures import (
    ACCELERATE,
    BARE,
    FABRIC,
    KIT,
    KIT_WITHOUT_RAY,
    LIGHTNING,
    RAY,
    SPAWN,
    TORCHRUN,
)
from comparison.processes import Failed, MemoryWatch, running, wait_for

_STEP_S = 0.015  # about the time of a step
PEERS = Path(__file__).resolve().parents[1] / "peers"
Command = Callable[[Path, Settings], list[str]]


@dataclass(frozen=True)
class Program:
    """A program that trains, and the module that it needs."""

    name: str
    needs: str
    command: Command

    @property
    def missing(self) -> str:
        return "" if importlib.util.find_spec(self.needs) else "not installed"


def script(name: str) -> Command:
    return lambda _folder, settings: [sys.executable, str(PEERS / name), "--settings", settings.as_json()]


def under_torchrun(name: str) -> Command:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    return lambda folder, settings: [*launcher, *script(name)(folder, settings)[1:]]


def kit(*options: str) -> Command:
    """`clustertrain run`, or another command, of a job file in the folder."""

    def command(folder: Path, settings: Settings) -> list[str]:
        job = {
            "name": "bench",
            "code": str(PEERS),
            "task": "kit:LeNet",
            "args": {"notes": settings.notes, "data": settings.data, "callback_s": settings.callback_s},
            "train": {"steps": settings.steps, "batch_size": BATCH_SIZE},
            "checkpoint": {"every": {"steps": settings.save_every or settings.steps}},
            "resources": {"workers": RANKS},
            "storage": str(folder / "runs"),
            "env": {"OMP_NUM_THREADS": "1"},
        }
        (folder / "job.yaml").write_text(yaml.safe_dump(job))
        return [sys.executable, "-m", "clustertrain.cli", "run", *options, "job.yaml"]

    return command


PROGRAMS = (
    Program(TORCHRUN, "torch", under_torchrun("torchrun_ddp.py")),
    Program(SPAWN, "torch", script("spawn_ddp.py")),
    Program(ACCELERATE, "accelerate", under_torchrun("accelerate_ddp.py")),
    Program(FABRIC, "lightning", script("fabric_ddp.py")),
    Program(LIGHTNING, "lightning", script("lightning_ddp.py")),
    Program(RAY, "ray", script("ray_trainer.py")),
    Program(KIT, "clustertrain", kit()),
    Program(KIT_WITHOUT_RAY, "clustertrain", kit("--no-ray")),
)
IMPORTS = """
import contextlib, importlib
for name in ("torch._dynamo", "ray.train.torch", "accelerate", "lightning"):
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
"""
BARE_STEP = Program(BARE, "torch", under_torchrun("torchrun_ddp.py"))


def warm_up(folder: Path) -> None:
    """Imports what the programs import, so that the first of them does not wait for the disk alone."""
    with running([sys.executable, "-c", IMPORTS], folder) as process:
        process.wait()


@dataclass(frozen=True)
class Step:
    """A line of the notes: when which process had made the step, and what it had used up to then."""

    at_s: float
    step: int
    pid: int
    cpu_s: float = 0.0
    page_faults: int = 0


def read_steps(folder: Path, rank: int) -> list[Step]:
    """The notes of a rank. The last line may still be in the making."""
    path = folder / f"rank-{rank}"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    fields = (line.split() for line in lines)
    return [
        Step(float(at), int(step), int(pid), float(cpu_s), int(faults))
        for at, step, pid, cpu_s, faults in fields
    ]


@dataclass(frozen=True)
class Trained:
    """A whole run. The speed is that of the steps after the first `warm` ones, and so is what a process of a
    rank uses for a step, as the mean of all ranks."""

    first_step_s: float
    job_s: float
    samples_per_s: float
    step_cpu_s: float
    step_page_faults: float


def train(program: Program, folder: Path, steps: int, data: str, warm: int) -> Trained:
    """Trains to the end."""
    began_s = time.time()
    with running(program.command(folder, Settings(str(folder), steps, data)), folder) as process:
        wait_for(process, folder, lambda: process.poll() == 0, 0.01)
        job_s = time.time() - began_s
    ranks = [read_steps(folder, rank) for rank in range(RANKS)]
    for rank, made in enumerate(ranks):
        if [each.step for each in made] != [*range(1, steps + 1)]:
            raise Failed(f"rank {rank} made {len(made)} steps, not {steps}")
    measured = RANKS * (steps - warm)
    cpu_s = sum(made[-1].cpu_s - made[warm - 1].cpu_s for made in ranks)
    page_faults = sum(made[-1].page_faults - made[warm - 1].page_faults for made in ranks)
    made = ranks[0]
    return Trained(
        made[0].at_s - began_s,
        job_s,
        samples_per_s(made[warm - 1 :]),
        cpu_s / measured,
        page_faults / measured,
    )


def samples_per_s(steps: list[Step]) -> float:
    """Of all ranks, between the ends of the first and the last of these steps."""
    return (len(steps) - 1) * RANKS * BATCH_SIZE / (steps[-1].at_s - steps[0].at_s)


def peak_bytes(program: Program, folder: Path, steps: int) -> int:
    """The largest PSS of a whole run."""
    settings = Settings(str(folder), steps)
    with MemoryWatch() as memory, running(program.command(folder, settings), folder) as process:
        wait_for(process, folder, lambda: process.poll() == 0, 0.01)
    return memory.peak_bytes


@dataclass(frozen=True)
class Recovered:
    """Seconds from a SIGKILL to the first new step, and how many steps were made again."""

    new_step_s: float
    redone_steps: int


def recover(program: Program, folder: Path, *, save_every: int, kill_at: int, callback_s: float) -> Recovered:
    """Kills rank 1 when it has made step `kill_at`, and ends the run after its next new step."""
    settings = Settings(str(folder), 1_000_000, save_every=save_every, callback_s=callback_s)
    with running(program.command(folder, settings), folder) as process:
        wait_for(process, folder, lambda: _last(folder).step >= kill_at, 0.002)
        time.sleep(random.uniform(0.0, _STEP_S + callback_s))  # the line of a step is written at its end
        killed_s = time.time()
        os.kill(_last(folder).pid, signal.SIGKILL)
        wait_for(process, folder, lambda: recovered(read_steps(folder, 1), killed_s) is not None, 0.02)
    found = recovered(read_steps(folder, 1), killed_s)
    assert found is not None, "it was waited for"
    return found


def _last(folder: Path) -> Step:
    return (read_steps(folder, 1) or [Step(0.0, 0, 0)])[-1]


def recovered(steps: list[Step], killed_s: float) -> Recovered | None:
    """The recovery in the notes of the killed rank. None before its first new step."""
    old = [each for each in steps if each.pid == steps[0].pid]
    later = steps[len(old) :]
    redone = sum(each.step <= old[-1].step for each in later)
    if redone == len(later):
        return None
    return Recovered(later[redone].at_s - killed_s, redone)
