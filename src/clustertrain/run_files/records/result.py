"""How an attempt, a start of its workers, or one rank ended: its result or its failure."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from clustertrain.run_files.states import STATES


@dataclass(frozen=True)
class BestCheckpoint:
    """The best checkpoint of a run by `checkpoint.keep_best`.

    Attributes:
        name: the name of the checkpoint.
        metric: the metric of `checkpoint.keep_best`.
        value: its value.
    """

    name: str
    metric: str
    value: float

    @property
    def text(self) -> str:
        return f"{self.metric} {self.value:.4g}"


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


@dataclass(frozen=True)
class Failure:
    """The failure that ended a start of the worker group.

    Attributes:
        rank, host, pid: the worker that failed first.
        error: the name of its exception, "signal", "exit" or "watchdog".
        signature: equal for a failure that occurs again, on any rank.
        signal: of a process that was killed. exit_code: of one that ended itself.
        run_exit_code: the exit code of the run if this failure ends it.
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
    run_exit_code: int = 1
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
