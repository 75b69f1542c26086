"""What the files of an attempt say about its time, with the clock of rank 0's node set to that of the driver.

A few files for each start of the workers, whatever the number of nodes: of the nodes' events only those of
rank 0's node are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from clustertrain.checkpoints.manifest import CheckpointName
from clustertrain.errors import JobError, StorageError
from clustertrain.record_file import RecordFile, T
from clustertrain.run.folder import Attempt, Restart
from clustertrain.run.recorded_job import is_of_script
from clustertrain.run.records import Claim, JobChanges, Outcome, Result, ResumePoint
from clustertrain.run.streams.events import read_events
from clustertrain.run.streams.step_counter import reached_of

_NOTED_S = 1.0  # clocks that differ by less are corrected without a note

Record = Mapping[str, Any]


class Line(NamedTuple):
    """What a line of the log says about the steps since the one before: the seconds of one of them, and how
    long it waited for its batch. `step_s` is 0 if they were not measured."""

    time: float
    step: int
    step_s: float
    data_wait_s: float


@dataclass(frozen=True)
class Group:
    """A start of the worker group. `plan` is None if it was only counted as a failed start; `failure` is the
    event `worker_died`, or `restarting` if the driver was killed."""

    number: int
    claimed: float
    plan: ResumePoint | None
    outcome: Outcome | None
    started: Record | None
    failure: Record | None
    counted: int
    lines: Sequence[Line]
    evaluated: Sequence[Line]
    saves: Sequence[Record]
    stages: Sequence[Record]

    @property
    def resumes(self) -> int:
        return self.plan.step if self.plan is not None else 0

    @property
    def reached(self) -> int:
        """The last finished step."""
        of_outcome = self.outcome.step if self.outcome is not None else None
        logged = (line.step for line in (*self.lines, *self.evaluated))
        return max([self.resumes, self.counted, of_outcome or 0, *logged])

    @cached_property
    def evaluations(self) -> list[float]:
        """When they ended, ascending."""
        return sorted(line.time for line in self.evaluated)

    @cached_property
    def saves_by_begin(self) -> list[tuple[float, Record]]:
        """The events of the saves, each with the time at which it began, ascending."""
        return sorted(((e["time"] - number(e, "write_s"), e) for e in self.saves), key=lambda save: save[0])

    @property
    def staging_s(self) -> float:
        """Rank 0 fetches one data set after the other; each event has the seconds of its own."""
        return sum({str(event.get("name")): number(event, "seconds") for event in self.stages}.values())


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
        failure = next((e for e in own if e["kind"] in ("worker_died", "restarting")), None)
        metrics = stream(restart.metrics_key)
        group = Group(
            restart.number,
            claimed,
            plan,
            read(restart.outcome),
            next((e for e in own if e["kind"] == "group_started"), None),
            failure,
            _counted(restart, failure),
            [_line(record) for record in metrics if record["kind"] == "train"],
            [_line(record) for record in metrics if record["kind"] == "eval"],
            [e for e in of_nodes if e["kind"] == "checkpoint" and _is_by(e, restart)],
            [e for e in of_nodes if e["kind"] == "stage"],
        )
        group = _on_drivers_clock(group, notes)
        groups.append(replace(group, stages=[e for e in group.stages if claimed <= e["time"] < until]))
    beat = read(attempt.heartbeat)
    has_metrics = any(group.lines or group.evaluated for group in groups)
    signs = [claim.time, *(e["time"] for e in events), *(time for _, time in claims)]
    signs += [line.time for group in groups[-1:] for line in (*group.lines[-1:], *group.evaluated[-1:])]
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


def _line(record: Record) -> Line:
    data_wait_s = number(record, "data_wait_s")
    step_s = data_wait_s + number(record, "compute_s") + number(record, "communication_s")
    return Line(record["time"], record["step"], step_s if "compute_s" in record else 0.0, data_wait_s)


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
    if failure is not None:
        return failure.get("step") or 0
    run, key = restart.attempt.run, restart.reached_key
    return reached_of(run.spool.read_or_none(key) or run.store.read_or_none(key) or b"")


def _on_drivers_clock(group: Group, notes: dict[str, None]) -> Group:
    """The same with the times of rank 0's node as the driver's clock had them. The driver asks that node for
    its time at the start of the workers; an earlier version did not, then the times are moved as far as the
    order of events demands."""
    started, ended, logged = group.started, group.failure, sorted([*group.lines, *group.evaluated])
    if started is None:
        return group
    ahead_s = number(started, "clock_ahead_s")
    if "clock_ahead_s" not in started and logged:
        late_s = logged[-1].time - ended["time"] if ended is not None else 0.0
        ahead_s = max(0.0, late_s) or min(0.0, logged[0].time - started["time"])
    if not ahead_s:
        return group
    if abs(ahead_s) >= _NOTED_S:
        clock = f"the clock of {group.plan.hosts[0] if group.plan and group.plan.hosts else 'rank 0'}"
        how = f"{abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} the driver's"
        notes[f"{clock} was {how}; its times are corrected"] = None

    def moved(records: Sequence[Record]) -> list[Record]:
        return [{**record, "time": record["time"] - ahead_s} for record in records]

    outcome = group.outcome
    if outcome is not None:
        outcome = replace(outcome, train_ended=outcome.train_ended - ahead_s)
    stages, saves = moved(group.stages), moved(group.saves)
    lines, evaluated = (
        [line._replace(time=line.time - ahead_s) for line in each] for each in (group.lines, group.evaluated)
    )
    return replace(group, outcome=outcome, lines=lines, evaluated=evaluated, saves=saves, stages=stages)
