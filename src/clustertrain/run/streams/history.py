"""The streams of a run, merged: events in order of time, and the curve without superseded steps."""

from __future__ import annotations

from typing import Any

from clustertrain.run.folder import Attempt, RunDir
from clustertrain.run.job_diff import was_refused
from clustertrain.run.streams.events import Follower, read_events
from clustertrain.run.streams.stream_names import is_events_stream, is_stream_of_records
from clustertrain.run.streams.streams import stream_names


class AttemptFollower:
    """Reads the records that were added to an attempt's streams since the last call, also in new streams."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._followers: dict[str, Follower] = {}

    def new(self) -> list[dict[str, Any]]:
        run, key = self._attempt.run, self._attempt.key
        for name in stream_names(run, key):
            if is_stream_of_records(name) and name not in self._followers:
                self._followers[name] = Follower(run, f"{key}/{name}")
        records = [record for follower in self._followers.values() for record in follower.new()]
        return sorted(records, key=lambda record: float(record["time"]))


def events_of_attempt(attempt: Attempt) -> list[dict[str, Any]]:
    """All events of an attempt, from every node, by time."""
    names = filter(is_events_stream, stream_names(attempt.run, attempt.key))
    events = [e for name in names for e in read_events(attempt.run, f"{attempt.key}/{name}")]
    return sorted(events, key=lambda event: float(event["time"]))


def curve(run: RunDir) -> list[dict[str, Any]]:
    """The metrics of a generation, as if it had never been interrupted.

    A start that resumes from step s supersedes every earlier record of a step after s: those steps are
    repeated. An attempt that starts over with a changed job supersedes all of them.
    """
    records: list[dict[str, Any]] = []
    for attempt in run.attempts():
        changes = attempt.changes.read()
        if changes is not None and changes.starts_over:
            records = []
        elif changes is not None and was_refused(attempt):
            continue
        for restart in attempt.restarts():
            plan = restart.plan.read()
            if plan is None:  # it died before it had a plan, so it measured nothing
                continue
            records = [record for record in records if record["step"] <= plan.step]
            measured = read_events(run, restart.metrics_key)
            records += [record for record in measured if record["kind"] in ("train", "eval")]
    return records
