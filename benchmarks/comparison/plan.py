"""What one round measures, in this order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from comparison import commands, trainings
from comparison.figures import (
    ASYNC_SAVE,
    AWS,
    COPY,
    CURL,
    EXTRACT,
    HEAD_AND_WORKERS,
    KEPT_STAGER,
    KIT,
    PLAIN_RAYJOB,
    RAY,
    SAVE,
    STAGE,
    STAGE_HTTP,
    START,
    SYMMETRIC_RUN,
    TAR,
    TORCH_SAVE,
)
from comparison.trainings import BARE_STEP, PROGRAMS, Program

SECTIONS = ("start", "tensors", "memory", "recovery", "save", "stage", "command", "slurm", "kubernetes")
START_FIGURES = ("first_step", "job", "samples", "step_cpu", "step_page_faults")
RECOVERIES = {("recovery", "redone"): 0.0, ("recovery_callback", "redone_callback"): 0.01}
"""The rows of a recovery, and the seconds of the callback after each step."""
Numbers = list[list[float]]
"""The values of each row of a measurement."""


@dataclass(frozen=True)
class Amounts:
    """How much is measured. The speed is that of the steps after the first `warm` ones. Each measurement has
    so many tries, and waits at most so long for a quiet machine before each. Without `everything` all
    programs start, and of the rest only what the goals need is measured."""

    rounds: int
    steps: int
    warm: int
    memory_steps: int
    save_rounds: int
    tries: int
    waits_s: int
    everything: bool = True


FULL = Amounts(rounds=5, steps=600, warm=100, memory_steps=200, save_rounds=3, tries=3, waits_s=60)
QUICK = Amounts(
    rounds=1, steps=250, warm=150, memory_steps=0, save_rounds=1, tries=1, waits_s=10, everything=False
)


@dataclass(frozen=True)
class Measurement:
    """Measures in a folder of its own, and finds values for some rows: each is a figure and a program. One
    that makes a cluster is measured `once`, with all of its rounds."""

    section: str
    rows: tuple[tuple[str, str], ...]
    measure: Callable[[Path], Numbers]
    missing: str = ""
    once: bool = False


def plan(amounts: Amounts, disk: Path) -> Iterator[Measurement]:
    """All measurements of a round. Saves and copies are made on the disk of that folder."""
    wanted = [each for each in PROGRAMS if amounts.everything or each.name == KIT]
    for each in PROGRAMS:
        yield _of_program("start", START_FIGURES, each, partial(_start, each, amounts))
    for each in (BARE_STEP, *wanted):
        yield _of_program("tensors", ("tensors",), each, partial(_from_tensors, each, amounts))
    for each in PROGRAMS if amounts.everything else ():
        yield _of_program("memory", ("memory",), each, partial(_memory, each, amounts))
    for each in wanted:
        if each.name in (RAY, KIT):
            for rows, callback_s in RECOVERIES.items():
                yield _of_program("recovery", rows, each, partial(_recovery, each, callback_s))
    saves, on_disk = (TORCH_SAVE, ASYNC_SAVE, KEPT_STAGER, COPY, SAVE), ["--folder", str(disk)]
    saving = ["saving.py", *on_disk, "--rounds", str(amounts.save_rounds)]
    yield _by_program("save", "save", saves, saving, scale=1000.0)
    if amounts.everything:
        copies = (AWS, STAGE, CURL, STAGE_HTTP, TAR, EXTRACT)
        staging = ["staging.py", *on_disk, "--rounds", "1", "--what", "s3", "http", "tar"]
        yield _by_program("stage", "stage", copies, staging, missing=commands.copies_missing())
    for name, arguments in commands.CLUSTERTRAIN.items():
        yield Measurement(
            "command", (("command", name), ("command_memory", name)), partial(_command, arguments)
        )
    if amounts.everything:
        rounds = ["--rounds", str(amounts.rounds)]
        sides = (START, HEAD_AND_WORKERS, SYMMETRIC_RUN)
        yield _by_program("slurm", "slurm_start", sides, ["slurm_start.py", *rounds], once=True)
        sides = (START, PLAIN_RAYJOB)
        yield _by_program("kubernetes", "kubernetes_start", sides, ["kube_start.py", *rounds], once=True)


def _of_program(
    section: str, figures: Sequence[str], program: Program, measure: Callable[[Path], Numbers]
) -> Measurement:
    return Measurement(section, tuple((figure, program.name) for figure in figures), measure, program.missing)


def _start(program: Program, amounts: Amounts, folder: Path) -> Numbers:
    found = trainings.train(program, folder, amounts.steps, "samples", amounts.warm)
    of_step = ([1000.0 * found.step_cpu_s], [found.step_page_faults])
    return [[found.first_step_s], [found.job_s], [found.samples_per_s], *of_step]


def _from_tensors(program: Program, amounts: Amounts, folder: Path) -> Numbers:
    data = "batch" if program is BARE_STEP else "tensors"
    return [[trainings.train(program, folder, amounts.steps, data, amounts.warm).samples_per_s]]


def _memory(program: Program, amounts: Amounts, folder: Path) -> Numbers:
    return [[trainings.peak_bytes(program, folder, amounts.memory_steps) / 1e6]]


def _recovery(program: Program, callback_s: float, folder: Path) -> Numbers:
    found = trainings.recover(program, folder, save_every=100, kill_at=280, callback_s=callback_s)
    return [[found.new_step_s], [float(found.redone_steps)]]


def _by_program(
    section: str,
    figure: str,
    sides: Sequence[str],
    argv: Sequence[str],
    *,
    scale: float = 1.0,
    missing: str = "",
    once: bool = False,
) -> Measurement:
    """A measurement that a program of this folder makes, which writes seconds for each side."""

    def measure(folder: Path) -> Numbers:
        found = commands.measured_by(argv[0], argv[1:], folder)
        return [[scale * each for each in found[side]] for side in sides]

    return Measurement(section, tuple((figure, side) for side in sides), measure, missing, once)


def _command(arguments: Sequence[str], folder: Path) -> Numbers:
    seconds, megabytes = commands.command(arguments, folder)
    return [[seconds], [megabytes]]
