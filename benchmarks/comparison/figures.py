"""The figures of the bench in the order of their tables, the programs, and the goals of clustertrain."""

from __future__ import annotations

from dataclasses import dataclass

from comparison.results import Report

KIT, KIT_WITHOUT_RAY = "clustertrain run", "clustertrain run --no-ray"
TORCHRUN, SPAWN, RAY = "torchrun + DDP", "mp.spawn + DDP", "Ray TorchTrainer"
ACCELERATE, FABRIC, LIGHTNING = "Accelerate", "Lightning Fabric", "Lightning Trainer"
BARE = "a bare DDP step"
SAVE, TORCH_SAVE = "clustertrain", "torch.save, fsynced"
ASYNC_SAVE, KEPT_STAGER, COPY = "dcp.async_save", "dcp.async_save, kept stager", "the copy alone"
STAGE, AWS = "stage()", "aws s3 cp"
STAGE_HTTP, CURL = "stage(), http", "curl"
EXTRACT, TAR = "stage(), extract", "tar -x"
START, HEAD_AND_WORKERS, SYMMETRIC_RUN = "clustertrain", "head and workers", "ray symmetric-run"
PLAIN_RAYJOB = "plain RayJob"
RENDER = "clustertrain render, 10,000 nodes"


@dataclass(frozen=True)
class Goal:
    """A bound for the median of a program: a number, or a multiple of the median of the program `of`."""

    program: str
    bound: float
    of: str = ""
    at_least: bool = False

    def text(self, unit: str) -> str:
        sign = "≥" if self.at_least else "≤"
        return f"{sign} {self.bound:g} × {self.of}" if self.of else f"{sign} {self.bound:g} {unit}"

    def measured(self, report: Report, figure: str) -> float | None:
        """The number to compare with the bound. None where one of the programs has no value."""
        row, peer = report.row(figure, self.program), report.row(figure, self.of)
        if row is None or row.spread is None:
            return None
        if not self.of:
            return row.spread.median
        return row.spread.median / peer.spread.median if peer and peer.spread else None

    def verdict(self, report: Report, figure: str, unit: str) -> str:
        """`reached` or `missed`, with the measured number and how far it is from the bound. † marks a number
        from values of a loaded machine."""
        measured = self.measured(report, figure)
        if measured is None:
            return "not measured"
        times = measured / self.bound
        is_reached = times >= 1 if self.at_least else times <= 1
        digits = 2 if is_reached or abs(times - 1) >= 0.01 else 3  # a missed number is not shown as its bound
        number = f"{measured:.{digits}f} ×" if self.of else f"{measured:,.{digits}f} {unit}"
        rows = (report.row(figure, self.program), report.row(figure, self.of))
        mark = " †" if any(value.loaded for row in rows if row for value in row.values) else ""
        if is_reached:
            return f"reached: {number}{mark}"
        by = f"a factor of {times:.1f}" if times > 2 else f"{abs(times - 1):.{digits - 2}%}"
        return f"**missed by {by}**: {number}{mark}"


@dataclass(frozen=True)
class Figure:
    """Something to measure, in `unit`; `meaning` is the text over its table."""

    key: str
    title: str
    unit: str
    meaning: str
    goals: tuple[Goal, ...] = ()
    picture: bool = False


FIGURES = (
    Figure(
        "first_step",
        "The first step",
        "s",
        "Seconds from the start of the command to the end of the first optimizer step. With "
        "`--no-ray` `clustertrain run` starts no Ray.",
        (Goal(KIT, 0.4, RAY), Goal(KIT_WITHOUT_RAY, 1.1, TORCHRUN)),
        picture=True,
    ),
    Figure("job", "The whole job", "s", "Seconds from the start of the command to its end."),
    Figure(
        "memory",
        "Memory",
        "MB",
        "The largest sum of the proportional set sizes (PSS) of all processes of the command, read every half"
        " second, in runs of their own.",
        picture=True,
    ),
    Figure(
        "samples",
        "Speed with a data set of samples",
        "samples/s",
        "Samples of both ranks per second after the first steps. `__getitem__` of the data set returns one "
        "sample.",
        (Goal(KIT, 1.15, TORCHRUN, at_least=True),),
        picture=True,
    ),
    Figure(
        "step_cpu",
        "The processor time of a step",
        "ms",
        "Of the process of a rank with the data set of samples, with its threads: the mean of both ranks. "
        "What the step takes beyond it is waiting, for the other rank or for a processor.",
    ),
    Figure(
        "step_page_faults",
        "Page faults of a step",
        "page faults",
        "Of the same process. By default glibc gives memory that a step has freed back to the kernel, on "
        "some ranks and not on others, and the next step gets it back page by page. The workers of "
        "clustertrain keep it.",
    ),
    Figure(
        "tensors",
        "Speed from tensors",
        "samples/s",
        "The same from a `TensorDataset`. A bare DDP step has the same batch each time and loads nothing.",
        (Goal(KIT, 0.97, BARE, at_least=True),),
    ),
    Figure(
        "recovery",
        "Recovery from a SIGKILL",
        "s",
        "Seconds from a SIGKILL of rank 1 at a random moment of a step to the end of the first step that "
        "had not been made before. Both save every 100 steps; stock Ray has a FailureConfig. clustertrain "
        "continues from [the memory of the node](guides/checkpoints.md#checkpoints-in-memory).",
        (Goal(KIT, 1.0),),
        picture=True,
    ),
    Figure("redone", "Steps that a recovery repeats", "steps", "Steps that rank 1 made a second time."),
    Figure(
        "recovery_callback",
        "Recovery of a training with a callback",
        "s",
        "The same with 10 ms of a callback after each step.",
        (Goal(KIT, 1.5),),
    ),
    Figure("redone_callback", "Steps that it repeats", "steps", "Steps that rank 1 made a second time."),
    Figure(
        "save",
        "A save",
        "ms",
        "How long the training loop waits for a save of 415 MB (`benchmarks/saving.py`). The copy alone: of "
        "each tensor into memory that is there, by one thread, without a save.",
        (Goal(SAVE, 0.05, TORCH_SAVE), Goal(SAVE, 0.5, ASYNC_SAVE)),
    ),
    Figure(
        "stage",
        "Data",
        "s",
        "Seconds for 1 GiB from loopback, by S3 and by HTTP, and for 100,000 files of 2 KiB out of a tar "
        "(`benchmarks/staging.py`). `stage()` also verifies the sha256 and syncs to the disk.",
    ),
    Figure(
        "slurm_start",
        "The first step on SLURM",
        "s",
        "Seconds from the first command of the batch script, on two nodes (`benchmarks/slurm_start.py`). The "
        "others are the scripts of Ray's documentation.",
        (Goal(START, 0.35, SYMMETRIC_RUN),),
    ),
    Figure(
        "kubernetes_start",
        "The first step on Kubernetes",
        "s",
        "Seconds from `kubectl apply` of a RayJob with two workers (`benchmarks/kube_start.py`). The plain "
        "RayJob starts a stock TorchTrainer.",
        (Goal(START, 0.8, PLAIN_RAYJOB),),
    ),
    Figure("command", "Commands", "s", "Seconds of the whole process.", (Goal(RENDER, 0.5),)),
    Figure("command_memory", "Memory of commands", "MB", "The largest resident set.", (Goal(RENDER, 200),)),
)
