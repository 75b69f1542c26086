"""The jobs that a scheduler accepted, starts and cancelled, and the nodes of such a start."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from clustertrain.node.version import __version__


@dataclass(frozen=True)
class SchedulerJob:
    """A job that a scheduler accepted for a run.

    Attributes:
        digest: of the snapshot that it starts from.
        time: of the submission, in seconds since 1970.
        place: where the job is, as the launcher knows it.
        output: the file that the scheduler writes, or empty if unknown.
    """

    scheduler: str
    job_id: str
    digest: str
    time: float
    place: dict[str, str]
    output: str


@dataclass(frozen=True)
class SchedulerStart:
    """One start of a scheduler's job, as recorded in the claim of its attempt.

    Attributes:
        scheduler: the name of its launcher.
        job_id: the scheduler's ID of the job.
        place: where the job is, as the launcher knows it.
        start: the scheduler's mark of this start; empty if it has none.
        nodes: the scheduler's names of the job's nodes, the head's first.
        series: differs between jobs of one ID, of a scheduler whose IDs come again.
    """

    scheduler: str
    job_id: str
    place: dict[str, str] = field(default_factory=dict)
    start: str = ""
    nodes: tuple[str, ...] = ()
    series: str = ""

    def is_same_job(self, other: SchedulerStart) -> bool:
        """Return whether both are starts of one job of one scheduler."""
        return (self.scheduler, self.place, self.job_id) == (other.scheduler, other.place, other.job_id)


@dataclass(frozen=True)
class Cancellation:
    """A waiting job that `stop` cancelled: the scheduler does not keep it. `by`: "user on host"."""

    by: str
    time: float = field(default_factory=time.time)


@dataclass(frozen=True)
class Rendezvous:
    """The data that a node needs to join the cluster.

    Attributes:
        port: Ray's head listens on it.
        token_path: where the head's node keeps the token; each node has its own copy from the SLURM step.
    """

    job_id: str
    start: str
    head_address: str
    port: int
    token_path: str
    nodes: tuple[str, ...]
    version: str = __version__

    @property
    def ray_address(self) -> str:
        return f"{self.head_address}:{self.port}"


@dataclass(frozen=True)
class Arrival:
    """A node that has found the head.

    With `error` the node does not take part; `exit_code` is then the exit code of the run, or None if the
    node was lost during the run.
    """

    host: str
    error: str | None = None
    exit_code: int | None = None
