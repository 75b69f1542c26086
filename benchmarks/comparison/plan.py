"""What one round measures, in this order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from comparison import commands, trainings
from comparison.figures import ASYNC_SAVE, AWS, KEPT_STAGER, KIT, RAY, SAVE, STAGE, TORCH_SAVE
from comparison.trainings import BARE_STEP, PROGRAMS, Program

SECTIONS = ("start", "tensors", "memory", "recovery", "save", "stage", "command")
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
    """Measures in a folder of its own, and finds values for some rows: each is a figure and a program."""

    section: str
    rows: tuple[tuple[str, str], ...]
    measure: Callable[[Path], Numbers]
    missing: str = ""


def plan(amounts: Amounts, disk: Path) -> Iterator[Measurement]:
    """All measurements of a round. Saves and copies are made on the disk of that folder."""
    wanted = [each for each in PROGRAMS if amounts.everything or each.name == KIT]
    for each in PROGRAMS:
        yield _of_program("start", ("first_step", "job", "samples"), each, partial(_start, each, amounts))
    for each in (BARE_STEP, *wanted):
        yield _of_program("tensors", ("tensors",), each, partial(_from_tensors, each, amounts))
    for each in PROGRAMS if amounts.everything else ():
        yield _of_program("memory", ("memory",), each, partial(_memory, each, amounts))
    for each in wanted:
        if each.name in (RAY, KIT):
            yield _of_program("recovery", ("recovery", "redone"), each, partial(_recovery, each))
    sides = (TORCH_SAVE, ASYNC_SAVE, KEPT_STAGER, SAVE)
    saving = partial(commands.measured_by, "saving.py", disk, amounts.save_rounds)
    yield Measurement("save", tuple(("save", side) for side in sides), partial(_sides, saving, sides, 1000.0))
    if amounts.everything:
        staging = partial(commands.measured_by, "staging.py", disk, 1)
        rows = (("stage", AWS), ("stage", STAGE))
        measure = partial(_sides, staging, (AWS, STAGE), 1.0)
        yield Measurement("stage", rows, measure, commands.copies_missing())
    for name, arguments in commands.CLUSTERTRAIN.items():
        yield Measurement(
            "command", (("command", name), ("command_memory", name)), partial(_command, arguments)
        )


def _of_program(
    section: str, figures: Sequence[str], program: Program, measure: Callable[[Path], Numbers]
) -> Measurement:
    return Measurement(section, tuple((figure, program.name) for figure in figures), measure, program.missing)


def _start(program: Program, amounts: Amounts, folder: Path) -> Numbers:
    found = trainings.train(program, folder, amounts.steps, "samples", amounts.warm)
    return [[found.first_step_s], [found.job_s], [found.samples_per_s]]


def _from_tensors(program: Program, amounts: Amounts, folder: Path) -> Numbers:
    data = "batch" if program is BARE_STEP else "tensors"
    return [[trainings.train(program, folder, amounts.steps, data, amounts.warm).samples_per_s]]


def _memory(program: Program, amounts: Amounts, folder: Path) -> Numbers:
    return [[trainings.peak_bytes(program, folder, amounts.memory_steps) / 1e6]]


def _recovery(program: Program, folder: Path) -> Numbers:
    found = trainings.recover(program, folder, save_every=100, kill_at=280)
    return [[found.new_step_s], [float(found.redone_steps)]]


def _sides(
    seconds: Callable[[Path], Mapping[str, list[float]]], sides: Sequence[str], scale: float, folder: Path
) -> Numbers:
    found = seconds(folder)
    return [[scale * each for each in found[side]] for side in sides]


def _command(arguments: Sequence[str], folder: Path) -> Numbers:
    seconds, megabytes = commands.command(arguments, folder)
    return [[seconds], [megabytes]]
