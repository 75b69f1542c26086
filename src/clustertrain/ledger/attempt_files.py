"""What the files of an attempt say about its time, with the clock of rank 0's node set to that of the driver.

A few files for each start of the workers, whatever the number of nodes: of the nodes' events only those of
rank 0's node are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from clustertrain.checkpoints.manifest import CheckpointName
from clustertrain.errors import JobError, StorageError
from clustertrain.record_file import RecordFile, T
from clustertrain.run.folder import Attempt, Restart
from clustertrain.run.recorded_job import is_of_script
from clustertrain.run.records import Claim, JobChanges, Outcome, Result, ResumePoint
from clustertrain.run.streams.events import read_events
from clustertrain.run.streams.history import clocks_ahead_s
from clustertrain.run.streams.step_counter import counted_step

Record = Mapping[str, Any]


class Line(NamedTuple):
    """What a line of the log says about the steps since the one before: the seconds of one of them, and how
    long it waited for its batch. `step_s` is 0 if they were not measured."""

    time: float
    step: int
    step_s: float
    data_wait_s: float


class Save(NamedTuple):
    """When a save began, and how long the training waited for it."""

    begins: float
    blocking_s: float
    reason: str


@dataclass(frozen=True)
class Group:
    """A start of the worker group; its times are on the clock of the driver.

    Attributes:
        plan: None if it was only counted as a failed start.
        failure: the event `worker_died`, or `restarting` if the driver was killed.
        reached: the last finished step.
        evaluations: when they ended, ascending.
        saves: ascending.
    """

    attempt: int
    number: int
    claimed: float
    plan: ResumePoint | None
    outcome: Outcome | None
    started: Record | None
    failure: Record | None
    reached: int
    lines: Sequence[Line]
    evaluations: list[float]
    saves: Sequence[Save]
    staging_s: float

    @property
    def resumes(self) -> int:
        if self.plan is None:
            return 0
        is_later = self.plan.of_script and (self.number > 0 or self.attempt > 1)
        return self.lines[0].step - 1 if is_later and self.lines else self.plan.step


@dataclass(frozen=True)
class AttemptFiles:
    """`last_sign`: the newest time that one of its processes wrote. `of_script`: its steps are not known."""

    attempt: Attempt
    claim: Claim
    result: Result | None
    changes: JobChanges | None
    ray_started: float | None
    last_sign: float
    groups: Sequence[Group]
    of_script: bool

    @property
    def saves_itself(self) -> bool:
        """Whether it is a script: which of its steps are saved is not known."""
        return any(group.plan is not None and group.plan.of_script for group in self.groups)

    @property
    def end(self) -> str:
        """How it ended, as the cause of what follows."""
        how = f"ended as {self.result.state} ({self.result.cause})" if self.result else "left no result"
        return f"attempt {self.attempt.n} {how}"


def number(record: Record, name: str) -> float:
    """A field that other programs may have written: 0 if it is no number."""
    value = record.get(name)
    return float(value) if isinstance(value, int | float) and abs(value) < 1e12 else 0.0


def gpus_per_rank(groups: Sequence[Group]) -> int:
    """The GPUs of the first rank of the newest start that has any."""
    for group in reversed(groups):
        match group.started:
            case {"ranks": [{"gpus": [_, *_] as gpus}, *_]}:
                return len(gpus)
    return 0


def read_attempt(attempt: Attempt, notes: dict[str, None]) -> AttemptFiles | None:
    """The files of an attempt, or None if it was not claimed. A file that cannot be read counts as missing,
    and `notes` then says so."""

    def read(file: RecordFile[T]) -> T | None:
        try:
            return file.read()
        except StorageError as error:
            notes[str(error).splitlines()[0]] = None
            return None

    def stream(key: str) -> list[dict[str, Any]]:
        return read_events(attempt.run, key)

    if (claim := read(attempt.claim)) is None:
        return None
    of_driver = (attempt.events, attempt.launcher_events, attempt.agent_events)
    events = sorted((e for path in of_driver for e in stream(attempt.key_of(path))), key=lambda e: e["time"])
    claims = [(each, one.time) for each in attempt.restarts() if (one := read(each.claim)) is not None]
    plans = [read(restart.plan) for restart, _ in claims]
    hosts = {plan.hosts[0] for plan in plans if plan is not None and plan.hosts}
    of_nodes = [e for host in sorted(hosts) for e in stream(attempt.key_of(attempt.node_events(host)))]
    groups = []
    ends = [*(time for _, time in claims[1:]), float("inf")]
    for (restart, claimed), plan, until in zip(claims, plans, ends, strict=False):
        own = [e for e in events if claimed <= e["time"] < until]
        started = next((e for e in own if e["kind"] == "group_started"), None)
        failure = next((e for e in own if e["kind"] in ("worker_died", "restarting")), None)
        metrics = [e for e in stream(restart.metrics_key) if e["kind"] in ("train", "eval")]
        ahead_s = number(started or {}, "clock_ahead_s")  # of rank 0's node
        for host, by_s in clocks_ahead_s([started] if started is not None else []).items():
            how = f"{abs(by_s):.0f} s {'ahead of' if by_s > 0 else 'behind'} the driver's"
            notes[f"the clock of {host} was {how}; its times are corrected"] = None
        outcome, counted = read(restart.outcome), _counted(restart, failure)
        ended_at = (outcome.step or 0) if outcome is not None else 0
        by_rank_0 = [(e["time"] - ahead_s, e) for e in of_nodes]
        saves = (_save(time, e) for time, e in by_rank_0 if e["kind"] == "checkpoint" and _is_by(e, restart))
        staged = [e for time, e in by_rank_0 if e["kind"] == "stage" and claimed <= time < until]
        group = Group(
            attempt.n,
            restart.number,
            claimed,
            plan,
            outcome and replace(outcome, train_ended=outcome.train_ended - ahead_s),
            started,
            failure,
            max([plan.step if plan is not None else 0, counted, ended_at, *(e["step"] for e in metrics)]),
            [_line(e, ahead_s) for e in metrics if e["kind"] == "train"],
            sorted(e["time"] - ahead_s for e in metrics if e["kind"] == "eval"),
            sorted(saves),
            # Rank 0 fetches one data set after the other; each event has the seconds of its own.
            sum({str(e.get("name")): number(e, "seconds") for e in staged}.values()),
        )
        groups.append(group)
    beat = read(attempt.heartbeat)
    has_metrics = any(group.lines or group.evaluations for group in groups)
    signs = [claim.time, *(e["time"] for e in events), *(time for _, time in claims)]
    signs += [line.time for group in groups[-1:] for line in group.lines[-1:]]
    signs += [time for group in groups[-1:] for time in group.evaluations[-1:]]
    return AttemptFiles(
        attempt,
        claim,
        read(attempt.result),
        read(attempt.changes),
        next((e["time"] for e in events if e["kind"] == "ray_started"), None),
        max([*signs, beat.time if beat is not None else 0.0]),
        groups,
        bool(groups) and not has_metrics and _is_of_script(attempt),
    )


def _line(record: Record, ahead_s: float) -> Line:
    data_wait_s = number(record, "data_wait_s")
    step_s = data_wait_s + number(record, "compute_s") + number(record, "communication_s")
    return Line(
        record["time"] - ahead_s, record["step"], step_s if "compute_s" in record else 0.0, data_wait_s
    )


def _save(ended: float, event: Record) -> Save:
    begins = ended - number(event, "write_s")
    return Save(begins, number(event, "blocking_s"), str(event.get("reason") or "steps"))


def _is_of_script(attempt: Attempt) -> bool:
    try:
        return is_of_script(attempt)
    except (JobError, StorageError):  # of a later version, say: then its steps are not known either
        return True


def _is_by(checkpoint: Record, restart: Restart) -> bool:
    name = CheckpointName.parse(str(checkpoint.get("name")))
    return name is not None and (name.attempt, name.restart) == (restart.attempt.n, restart.number)


def _counted(restart: Restart, failure: Record | None) -> int:
    """The last step that a start has finished: its failure names it, otherwise the counter of rank 0."""
    return counted_step(restart) if failure is None else failure.get("step") or 0
