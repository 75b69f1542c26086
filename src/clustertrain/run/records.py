"""The contents of the small files of a run, one frozen class for each; folder.py names the file of each.

A later version may add a field: a reader ignores fields that it does not know. A change of meaning takes a
new record_file.FORMAT_VERSION, which an older reader refuses.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from clustertrain.job.identity import Change
from clustertrain.node.processes import Process
from clustertrain.run.states import STATES
from clustertrain.version import __version__

MOST_NAMES = 3  # of files in a line

# ------------------------------------------------------------------------------------------- an attempt


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
class JobChanges:
    """The differences between the job of an attempt and the job of the attempt before.

    Attributes:
        step, checkpoint: of the newest checkpoint when the attempt was claimed; 0 and None if the run had
            none. Both are None for a script that had a file in its checkpoint folder.
        keys: the keys of the run's identity that differ.
        of_script: the run is that of a script, whose steps are unknown.
    """

    step: int | None
    checkpoint: str | None
    keys: tuple[Change, ...]
    of_script: bool = False

    @property
    def starts_over(self) -> bool:
        """Whether the changed job replaces the old one, of which there was no checkpoint."""
        return self.checkpoint is None and self.step is not None


@dataclass(frozen=True)
class Repository:
    """A git repository with code of the job.

    Attributes:
        folder: its top, or the folder of the code if it is in none.
        commit: None if there is none.
        note: what git could not tell, or why the diff is left out.
        changed: tracked files differ from the commit.
        diff: how they differ; in a submission only, an attempt has it as a file.
    """

    folder: str
    commit: str | None = None
    note: str = ""
    changed: bool = False
    diff: str = ""


@dataclass(frozen=True)
class CodeFile:
    """A file of the code or of `data`: a digest of its content, and when it was last changed.

    `changed_at` is in seconds since 1970. It is None for source code and `data`, which no run writes.
    """

    digest: str
    changed_at: float | None = None


@dataclass(frozen=True)
class Source:
    """The repositories of the job's code, and its files by name.

    Both are empty if no process saw them, as for a rendered RayJob.
    """

    repositories: tuple[Repository, ...] = ()
    files: Mapping[str, CodeFile] = field(default_factory=dict)


@dataclass(frozen=True)
class CodeChange:
    """Files of the code that have changed since the newest attempt before that trained.

    Attributes:
        since: "step 160", from which this attempt resumes, or "attempt 1" for a script.
    """

    files: tuple[str, ...]
    since: str

    @property
    def text(self) -> str:
        """The change in one line, such as `task.py has changed since step 160`."""
        *others, last = self.files
        if len(others) >= MOST_NAMES:
            others, last = others[:MOST_NAMES], f"{len(self.files) - MOST_NAMES} more"
        names = f"{', '.join(others)} and {last} have" if others else f"{last} has"
        return f"{names} changed since {self.since}"


@dataclass(frozen=True)
class Provenance:
    """The code, the packages and the machine with which an attempt was started.

    Attributes:
        source: the code. Of a submitted job, as it was at the submission.
        packages: those of the Python that claimed the attempt, as `name==version`.
        host: where that was; the event `group_started` has the hosts and GPUs of the ranks.
        code_change: None if the code is that of the attempt before, or unknown.
    """

    source: Source
    packages: tuple[str, ...]
    python: str
    platform: str
    host: str
    cpus: int | None = None
    memory_bytes: int | None = None
    version: str = __version__
    code_change: CodeChange | None = None


@dataclass(frozen=True)
class Beat(Process):
    """The heartbeat of a driver: a reader checks whether `counter` changes, and compares no clocks."""

    time: float
    counter: int


@dataclass(frozen=True)
class StopRequest:
    """A request that the run finishes its step, saves and ends.

    Attributes:
        cause, state: a row of states.STATES; the run ends with them.
        text: of the result, two or three lines for people.
        by: "takeover" if another start of the run made the request.
    """

    cause: str
    state: str = "stopped"
    text: str = ""
    by: str = ""
    time: float = field(default_factory=time.time)


@dataclass(frozen=True)
class SaveRequest:
    """A request that the run saves at its next step and continues.

    Attributes:
        pod: the pod that made the request, because it is about to end.
    """

    pod: str = ""
    time: float = field(default_factory=time.time)


@dataclass(frozen=True)
class BestCheckpoint:
    """The best checkpoint of a run by `checkpoint.keep_best`: its name, and its value of the metric."""

    name: str
    metric: str
    value: float

    @property
    def text(self) -> str:
        return f"{self.metric} {self.value:.4g}"


@dataclass(frozen=True)
class FunctionSeed:
    """The seed of the random states with which a function begins, on every rank and at every start.

    It is drawn at the first start of a generation.
    """

    value: int


@dataclass(frozen=True)
class Result:
    """The result of an attempt.

    Attributes:
        state, cause: a row of states.STATES.
        exit_code: that of `clustertrain run`.
        text: two or three lines for people: the error, or why the run was done early; otherwise empty.
        step, redone_steps: None for a script, which counts its own.
        skipped_steps: as in Outcome.
        checkpoint: the newest one.
        best: None without `checkpoint.keep_best`, or if no checkpoint has a value of its metric.
        train_s: seconds of the training in the last start of the workers.
        already_finished: the run was done before, and nothing was left to train: the attempt changes nothing.
        ended_at: in seconds since 1970.

    Raises:
        ValueError: there is no such state, or it has no such cause.
    """

    state: str
    cause: str
    exit_code: int
    text: str = ""
    step: int | None = 0
    epoch: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    checkpoint: str | None = None
    restarts: int = 0
    redone_steps: int | None = 0
    skipped_steps: int | None = None
    world_size: int | None = None
    train_s: float | None = None
    best: BestCheckpoint | None = None
    already_finished: bool = False
    ended_at: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise ValueError(f"{self.state!r} is no state of a run: see states.STATES.")
        if self.cause not in STATES[self.state].causes:
            raise ValueError(f"{self.cause!r} is no cause of state {self.state!r}: see states.STATES.")


# ------------------------------------------------------------------------- one start of the worker group


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
class ResizeRequest:
    """A request to one start of the worker group to save and return.

    The reason is that there is room for `world_size` workers.
    """

    world_size: int
    time: float = field(default_factory=time.time)


@dataclass(frozen=True)
class Failure:
    """The failure that ended a start of the worker group.

    Attributes:
        rank, host, pid: the worker that failed first.
        error: the name of its exception, "signal", "exit" or "watchdog".
        signature: equal for a failure that occurs again, on any rank.
        signal: of a process that was killed. exit_code: of one that ended itself.
        kit_exit_code: the exit code of the run if this failure ends it.
        cause: one of state `failed`.
        entry: its name in the list of docs/reference/errors.md, or "unknown".
        fatal: another start would fail in the same way.
        transient: it may come from the network, the storage or the machine, so it may occur twice.
        retry_after_s: how long the next start waits.
        broken_node: Ray's id of the node if its hardware failed and the next starts leave it out; else empty.
        restart, step: the start that failed, and the last step that it finished.
    """

    rank: int
    error: str
    text: str
    signature: str
    signal: int | None = None
    exit_code: int | None = None
    kit_exit_code: int = 1
    cause: str = "error"
    fatal: bool = False
    transient: bool = False
    retry_after_s: float = 0.0
    host: str = ""
    pid: int | None = None
    broken_node: str = ""
    entry: str = ""
    restart: int = 0
    step: int = 0

    @property
    def of_script(self) -> bool:
        """Whether a script ended; its steps are not known."""
        return self.error == "ScriptFailed"


@dataclass(frozen=True)
class Hang:
    """The first rank of a start of the worker group that made no progress for too long.

    Attributes:
        text: the error of the user's code, for a rank that can never go on.
    """

    rank: int
    text: str = ""


@dataclass(frozen=True)
class Returned:
    """The return of a rank from the user's function.

    Attributes:
        line: the line from which it returned.
        collectives: how many collectives it had called by then, in each process group.
    """

    line: str
    collectives: dict[str, int]


@dataclass(frozen=True)
class StacksRequest:
    """A request for the stacks of all ranks of one start of the worker group. `id` names the answers."""

    id: str


@dataclass(frozen=True)
class Outcome:
    """The report of rank 0 when a start of the worker group has returned.

    Attributes:
        finished: nothing is left to train; otherwise a stop was requested.
        step: None for a script that logs none.
        early_stop: why it finished before its last step, in three lines, or empty if it did not.
        skipped_steps: how many steps overflowed under fp16 since the start of the run, or None if none can.
        train_started, train_ended: in seconds since 1970.
    """

    finished: bool
    step: int | None
    epoch: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    early_stop: str = ""
    skipped_steps: int | None = None
    train_started: float = 0.0
    train_ended: float = 0.0


# ------------------------------------------------------------------------- the files of the user's code


@dataclass(frozen=True)
class CopiedCode:
    """The files of the code that were copied to the working folder of a run, each with its sha256."""

    versions: dict[str, str]


@dataclass(frozen=True)
class LeftFiles:
    """The files that a run has left in the user's own folder of code, by their names in it."""

    folder: str
    names: tuple[str, ...]


# --------------------------------------------------------------------------------- the nodes of a cluster


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


# ------------------------------------------------------------------------------------- a scheduler's jobs


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
class Cancellation:
    """A waiting job that `stop` cancelled: the scheduler does not keep it. `by`: "user on host"."""

    by: str
    time: float = field(default_factory=time.time)
