"""Who runs an attempt or a start of its workers, and from where it continues."""

from __future__ import annotations

from dataclasses import dataclass

from clustertrain.node.processes import Process
from clustertrain.run_files.records.scheduler import SchedulerStart


@dataclass(frozen=True)
class Progress:
    """The progress of a run: `resumes` is the step of its newest checkpoint, 0 if there is none.

    `files` is then a checksum of the files that a script has in its checkpoint folder.
    """

    resumes: int
    files: str | None


@dataclass(frozen=True)
class Claim(Process):
    """The process that runs an attempt. The attempt exists from the moment this file exists.

    Attributes:
        time: of the claim, in seconds since 1970.
        launcher: "local", "slurm" or "kubernetes".
        resumes, files: as in Progress, when the attempt was claimed.
        allocation: the scheduler's start that made the attempt, None for a run on one machine.
    """

    time: float
    world_size: int
    launcher: str
    resumes: int = 0
    files: str | None = None
    allocation: SchedulerStart | None = None

    @property
    def progress(self) -> Progress:
        return Progress(self.resumes, self.files)


@dataclass(frozen=True)
class Beat(Process):
    """The heartbeat of a driver: a reader checks whether `counter` changes, and compares no clocks."""

    time: float
    counter: int


@dataclass(frozen=True)
class RestartClaim:
    """The process that claimed a start of the worker group; `host` is the host's name."""

    host: str
    pid: int
    time: float


@dataclass(frozen=True)
class ResumePoint:
    """The plan of a start of the worker group: where it resumes, and its workers.

    Attributes:
        checkpoint, step: None and 0 if there is no checkpoint.
        world_size: the number of workers.
        hosts, addresses: the name and the address of the node of each rank.
        of_script: a script does not say from where it continues: before the first step that it logs.
    """

    checkpoint: str | None
    step: int
    world_size: int
    hosts: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    of_script: bool = False


@dataclass(frozen=True)
class FunctionSeed:
    """The seed of the random states with which a function begins, on every rank and at every start.

    It is drawn at the first start of a generation.
    """

    value: int
