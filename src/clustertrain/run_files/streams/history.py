"""The streams of a run, merged: events in order of time, and the curve without superseded steps."""

from __future__ import annotations

from contextlib import suppress

from clustertrain.errors import StorageError
from clustertrain.node.units import LARGEST_INTEGER
from clustertrain.run_files.folder.run_dir import Attempt, RunDir
from clustertrain.run_files.folder.stream_names import is_events_stream, is_stream_of_records
from clustertrain.run_files.job_diff import changed_nothing
from clustertrain.run_files.streams.events import Record, new_records, read_events
from clustertrain.run_files.streams.streams import Tail, stream_names
from clustertrain.storage import Location

_STREAMS_PER_LOOK = 32
_LAST_ATTEMPTS = 3


class AttemptFollower:
    """Reads the records that were added to an attempt's streams since the last call, also in new streams.

    Each node has a stream of its own, and most of them are silent while the run trains. So that a look takes
    no longer with a thousand nodes, it reads the next 32 streams in turn.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._tails: dict[str, Tail] = {}
        self._due: list[str] = []  # the streams whose turn comes before the next listing

    def new(self, *, of_all: bool = False) -> list[Record]:
        """Return the new records by time.

        Args:
            of_all: read every stream, as at the end of a run.
        """
        if of_all or not self._due:
            self._due = self._names()
        turns = len(self._due) if of_all else _STREAMS_PER_LOOK
        names, self._due = self._due[:turns], self._due[turns:]
        records = [record for name in names for record in new_records(self._tails[name])]
        return sorted(records, key=lambda record: float(record["time"]))

    def _names(self) -> list[str]:
        """Return the names of the streams that exist now, and open a tail for each new one."""
        run, key = self._attempt.run, self._attempt.key
        for name in stream_names(run, key):
            if is_stream_of_records(name) and name not in self._tails:
                self._tails[name] = Tail(run, f"{key}/{name}")
        return list(self._tails)


def events_of_attempt(attempt: Attempt) -> list[Record]:
    """Return all events of an attempt, from every node, by time."""
    names = filter(is_events_stream, stream_names(attempt.run, attempt.key))
    events = [event for name in names for event in read_events(attempt.run, f"{attempt.key}/{name}")]
    return sorted(events, key=lambda event: float(event["time"]))


def events_of_last_attempts(storage: Location, name: str) -> list[list[Record]]:
    """Return the events of each of a run's last three attempts, the newest first.

    The list is empty if the storage cannot be read now.
    """
    with suppress(StorageError):
        attempts = RunDir.newest(storage.with_patience(0), name).attempts()
        return [events_of_attempt(attempt) for attempt in reversed(attempts[-_LAST_ATTEMPTS:])]
    return []


def newest_group(attempt: Attempt) -> Record | None:
    """Return the event of the newest start of the attempt's workers, or None if there was none."""
    groups = (event for event in reversed(events_of_attempt(attempt)) if event["kind"] == "group_started")
    return next(groups, None)


def ranks_of(group: Record | None) -> tuple[Record, ...]:
    """Return the ranks in the event of a start; other programs may have written something else there."""
    ranks = group.get("ranks") if group is not None else None
    return tuple(rank for rank in ranks if isinstance(rank, dict)) if isinstance(ranks, list) else ()


def host_of(group: Record | None, rank: int) -> str | None:
    """Return the host of a rank, by the event of a start; None if it has no such rank."""
    return next((str(each["host"]) for each in ranks_of(group) if each.get("rank") == rank), None)


def curve(run: RunDir) -> list[Record]:
    """Return the metrics of a generation, as if it had never been interrupted.

    A start that resumes from step s supersedes every earlier record of a step after s: those steps are
    repeated. It may begin with what followed step s, and supersedes those records as well. An attempt that
    starts over with a changed job supersedes all of them.
    """
    records: list[Record] = []
    for attempt in run.attempts():
        changes = attempt.changes.read()
        if changes is not None and changes.starts_over:
            records = []
        elif changes is not None and changed_nothing(attempt):
            continue
        for restart in attempt.restarts():
            plan = restart.plan.read()
            if plan is None:  # it died before it had a plan, so it measured nothing
                continue
            measured = read_events(run, restart.metrics_key)
            new = [record for record in measured if record["kind"] in ("train", "eval")]
            again = {(record["kind"], record["step"]) for record in new}
            until = plan.step
            if plan.of_script:  # it does not say from where it continues
                until = min((record["step"] - 1 for record in new), default=LARGEST_INTEGER)
            kept = (record for record in records if record["step"] <= until)
            records = [*(record for record in kept if (record["kind"], record["step"]) not in again), *new]
    return records
