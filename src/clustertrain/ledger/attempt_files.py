"""What the files of an attempt say about its time, with the clock of rank 0's node set to that of the driver.

A few files for each start of the workers, whatever the number of nodes: of the nodes' events only those of
rank 0's node are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from clustertrain.checkpoints.manifest import CheckpointName
from clustertrain.errors import StorageError
from clustertrain.ledger.start import Record, number
from clustertrain.record_file import RecordFile, T
from clustertrain.run.folder import Attempt, Restart
from clustertrain.run.records import Claim, JobChanges, Outcome, Result, ResumePoint
from clustertrain.run.streams.events import read_events
from clustertrain.run.streams.step_counter import reached_of

_NOTED_S = 1.0  # clocks that differ by less are corrected without a note


@dataclass(frozen=True)
class GroupFiles:
    """A start of the worker group. `plan` is None if it was only counted as a failed start; `failure` is the
    event `worker_died`, or `restarting` if the driver was killed."""

    number: int
    claimed: float
    plan: ResumePoint | None
    outcome: Outcome | None
    started: Record | None
    failure: Record | None
    records: Sequence[Record]
    saves: Sequence[Record]
    stages: Sequence[Record]
    reached: int

    @property
    def host(self) -> str:
        return self.plan.hosts[0] if self.plan is not None and self.plan.hosts else ""


@dataclass(frozen=True)
class AttemptFiles:
    """`last_sign`: the newest time that one of its processes wrote."""

    attempt: Attempt
    claim: Claim
    result: Result | None
    changes: JobChanges | None
    ray_started: float | None
    last_sign: float
    groups: Sequence[GroupFiles]
    gpus_per_rank: int


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
    paths = (attempt.events, attempt.launcher_events, attempt.agent_events)
    events = sorted((e for path in paths for e in stream(attempt.key_of(path))), key=lambda e: e["time"])
    restarts = [(each, read(each.claim)) for each in attempt.restarts()]
    claims = [(each, one.time) for each, one in restarts if one is not None]
    plans = {each.number: read(each.plan) for each, _ in claims}
    hosts = {plan.hosts[0] for plan in plans.values() if plan is not None and plan.hosts}
    of_nodes = [e for host in sorted(hosts) for e in stream(attempt.key_of(attempt.node_events(host)))]
    groups = []
    for n, (restart, claimed) in enumerate(claims):
        until = claims[n + 1][1] if n + 1 < len(claims) else float("inf")
        plan, own = plans[restart.number], [e for e in events if claimed <= e["time"] < until]
        failure = next((e for e in own if e["kind"] in ("worker_died", "restarting")), None)
        group = GroupFiles(
            restart.number,
            claimed,
            plan,
            read(restart.outcome),
            next((e for e in own if e["kind"] == "group_started"), None),
            failure,
            stream(restart.metrics_key),
            [e for e in of_nodes if e["kind"] == "checkpoint" and _is_by(e, attempt.n, restart.number)],
            [e for e in of_nodes if e["kind"] == "stage"],
            _reached(restart, failure, plan),
        )
        group = _on_drivers_clock(group, notes)
        between = [e for e in group.stages if claimed <= e["time"] < until]
        groups.append(replace(group, stages=between))
    beat = read(attempt.heartbeat)
    signs = [claim.time, *(e["time"] for e in events), *(time for _, time in claims)]
    signs += [record["time"] for group in groups[-1:] for record in group.records[-1:]]
    ray = next((e["time"] for e in events if e["kind"] == "ray_started"), None)
    return AttemptFiles(
        attempt,
        claim,
        read(attempt.result),
        read(attempt.changes),
        ray,
        max([*signs, beat.time if beat is not None else 0.0]),
        groups,
        max((_gpus_per_rank(group.started) for group in groups), default=0),
    )


def _is_by(checkpoint: Record, attempt: int, restart: int) -> bool:
    name = CheckpointName.parse(str(checkpoint.get("name")))
    return name is not None and (name.attempt, name.restart) == (attempt, restart)


def _reached(restart: Restart, failure: Record | None, plan: ResumePoint | None) -> int:
    """The last step that a start has finished: its failure names it, otherwise the counter of rank 0 does."""
    if failure is not None and "step" in failure:
        return int(failure["step"] or 0)
    if plan is None:
        return 0
    run, key = restart.attempt.run, restart.reached_key
    return reached_of(run.spool.read_or_none(key) or run.store.read_or_none(key) or b"")


def _gpus_per_rank(started: Record | None) -> int:
    ranks = started.get("ranks") if started is not None else None
    first = ranks[0] if isinstance(ranks, list) and ranks else None
    gpus = first.get("gpus") if isinstance(first, dict) else None
    return len(gpus) if isinstance(gpus, list) else 0


def _on_drivers_clock(group: GroupFiles, notes: dict[str, None]) -> GroupFiles:
    """The same with the times of rank 0's node as the driver's clock had them. The driver asks that node for
    its time at the start of the workers; an earlier version did not, then the times are moved as far as the
    order of events demands."""
    started, ended = group.started, group.failure
    ahead_s = number(started, "clock_ahead_s") if started is not None else 0.0
    if started is not None and "clock_ahead_s" not in started and group.records:
        late_s = group.records[-1]["time"] - ended["time"] if ended is not None else 0.0
        ahead_s = max(0.0, late_s) or min(0.0, group.records[0]["time"] - started["time"])
    if abs(ahead_s) < _NOTED_S and (started is None or "clock_ahead_s" not in started):
        return group
    if abs(ahead_s) >= _NOTED_S:
        clock = f"the clock of {group.host or 'rank 0'} was {abs(ahead_s):.0f} s"
        how = "ahead of" if ahead_s > 0 else "behind"
        notes[f"{clock} {how} the driver's; its times are corrected"] = None

    def moved(records: Sequence[Record]) -> list[Record]:
        return [{**record, "time": record["time"] - ahead_s} for record in records]

    outcome = group.outcome
    if outcome is not None:
        outcome = replace(outcome, train_ended=outcome.train_ended - ahead_s)
    return replace(
        group,
        outcome=outcome,
        records=moved(group.records),
        saves=moved(group.saves),
        stages=moved(group.stages),
    )
