"""What the files of an attempt say about its time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from clustertrain.errors import JobError, StorageError
from clustertrain.run_files.folder.run_dir import Attempt, Restart
from clustertrain.run_files.recorded_job import is_of_script
from clustertrain.run_files.records.claim import Claim, ResumePoint
from clustertrain.run_files.records.provenance import JobChanges
from clustertrain.run_files.records.result import Outcome, Result
from clustertrain.run_files.streams.events import Record, read_events
from clustertrain.run_files.streams.history import events_of_attempt
from clustertrain.run_files.streams.step_counter import counted_step
from clustertrain.storage.record_file import RecordFile, T


def of_kind(records: Sequence[Record], *kinds: str) -> list[Record]:
    """Return the records of these kinds."""
    return [each for each in records if each["kind"] in kinds]


def number(record: Record, name: str) -> float:
    """Return a field that other programs may have written: 0 if it is not a number below 1e12."""
    value = record.get(name)
    return float(value) if isinstance(value, int | float) and abs(value) < 1e12 else 0.0


@dataclass(frozen=True)
class OneStart:
    """A start of the worker group.

    Attributes:
        plan: None if it was only counted as a failed start.
        events: from its claim to that of the next start.
        lines, evaluations: the metrics of its training, and of its evaluations.
    """

    restart: Restart
    claimed: float
    plan: ResumePoint | None
    outcome: Outcome | None
    events: Sequence[Record]
    lines: Sequence[Record]
    evaluations: Sequence[Record]

    @property
    def started(self) -> Record | None:
        return next(iter(of_kind(self.events, "group_started")), None)

    @property
    def failure(self) -> Record | None:
        """The event `worker_died`, or `restarting` if the driver was killed."""
        return next(iter(of_kind(self.events, "worker_died", "restarting")), None)

    @property
    def resumes(self) -> int:
        if self.plan is None:
            return 0
        is_later = self.plan.of_script and (self.restart.number > 0 or self.restart.attempt.n > 1)
        return self.lines[0]["step"] - 1 if is_later and self.lines else self.plan.step

    @property
    def reached(self) -> int:
        """The last finished step: its failure names it, otherwise the counter of rank 0."""
        counted = counted_step(self.restart) if self.failure is None else self.failure.get("step") or 0
        planned = self.plan.step if self.plan is not None else 0
        returned = (self.outcome.step or 0) if self.outcome is not None else 0
        logged = (int(each["step"]) for each in (*self.lines, *self.evaluations))
        return max(int(counted), planned, returned, *logged)


@dataclass(frozen=True)
class AttemptFiles:
    """The contents of the files of an attempt.

    Attributes:
        last_sign: the newest time that one of its processes wrote.
        of_script: its steps are not known.
    """

    attempt: Attempt
    claim: Claim
    result: Result | None
    changes: JobChanges | None
    ray_started: float | None
    last_sign: float
    groups: Sequence[OneStart]
    of_script: bool

    @property
    def end(self) -> str:
        """How it ended, as the cause of what follows."""
        how = f"ended as {self.result.state} ({self.result.cause})" if self.result else "left no result"
        return f"attempt {self.attempt.n} {how}"


def gpus_per_rank(groups: Sequence[OneStart]) -> int:
    """Return the number of GPUs of the first rank of the newest start that has any, or 0."""
    for group in reversed(groups):
        match group.started:
            case {"ranks": [{"gpus": [_, *_] as gpus}, *_]}:
                return len(gpus)
    return 0


def read_attempt(attempt: Attempt, notes: dict[str, None]) -> AttemptFiles | None:
    """Read the files of an attempt; None if it was not claimed.

    A file that cannot be read counts as missing, and `notes` then gets its error.
    """

    def read(file: RecordFile[T]) -> T | None:
        try:
            return file.read()
        except StorageError as error:
            notes[str(error).splitlines()[0]] = None
            return None

    if (claim := read(attempt.claim)) is None:
        return None
    events = events_of_attempt(attempt)
    claims = [(each, one.time) for each in attempt.restarts() if (one := read(each.claim)) is not None]
    groups = []
    for n, (restart, claimed) in enumerate(claims):
        until = claims[n + 1][1] if n + 1 < len(claims) else math.inf
        own = [e for e in events if claimed <= e["time"] < until]
        metrics = read_events(attempt.run, restart.metrics_key)
        of_training = of_kind(metrics, "train"), of_kind(metrics, "eval")
        plan, outcome = read(restart.plan), read(restart.outcome)
        groups.append(OneStart(restart, claimed, plan, outcome, own, *of_training))
    beat = read(attempt.heartbeat)
    signs = [claim.time, *(e["time"] for e in events), *(time for _, time in claims)]
    signs += [e["time"] for each in groups[-1:] for e in (*each.lines[-1:], *each.evaluations[-1:])]
    has_metrics = any(group.lines or group.evaluations for group in groups)
    return AttemptFiles(
        attempt,
        claim,
        read(attempt.result),
        read(attempt.changes),
        next((e["time"] for e in of_kind(events, "ray_started")), None),
        max([*signs, beat.time if beat is not None else 0.0]),
        groups,
        bool(groups) and not has_metrics and _is_of_script(attempt),
    )


def _is_of_script(attempt: Attempt) -> bool:
    try:
        return is_of_script(attempt)
    except (JobError, StorageError):  # of a later version, say: then its steps are not known either
        return True
