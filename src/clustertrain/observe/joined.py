"""The streams of a run as one: events in order of time, and the curve without what was superseded."""

from __future__ import annotations

from typing import Any

from clustertrain.observe.events import Follower, read_events
from clustertrain.reached import read_reached
from clustertrain.run_dir import Attempt, RunDir


class AttemptFollower:
    """What was added to the streams of an attempt since the last look; new streams are found, too."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._followers: dict[str, Follower] = {}

    def new(self) -> list[dict[str, Any]]:
        for path in self._attempt.path.glob("*.jsonl"):
            self._followers.setdefault(path.name, Follower(path))
        records = [record for follower in self._followers.values() for record in follower.new()]
        return sorted(records, key=lambda record: float(record["time"]))


def events_of_attempt(attempt: Attempt) -> list[dict[str, Any]]:
    """All events of an attempt, from every node, by time."""
    events = [e for path in attempt.path.glob("events*.jsonl") for e in read_events(path)]
    return sorted(events, key=lambda event: float(event["time"]))


def curve(run: RunDir) -> list[dict[str, Any]]:
    """The metrics of a generation, as if it had never been interrupted.

    A start that resumed from step s makes every earlier record beyond s superseded: those steps were redone.
    """
    records: list[dict[str, Any]] = []
    for attempt in run.attempts():
        for restart in attempt.restarts():
            plan = run.read_json(f"{attempt.restart_key(restart)}/plan.json")
            if plan is None:  # it was claimed and died before it had a plan, so it measured nothing
                continue
            records = [record for record in records if record["step"] <= plan["step"]]
            records += [r for r in read_events(attempt.metrics(restart)) if r["kind"] in ("train", "eval")]
    return records


def reached_step(attempt: Attempt, restart: int) -> int:
    """The last step that a start of the group finished; 0 where it finished none.

    The mapped counter knows every step; where it was lost with its machine, the curve knows the last
    logged one.
    """
    logged = (int(r.get("step", 0)) for r in read_events(attempt.metrics(restart)))
    return max(read_reached(attempt.reached(restart)), *logged, 0)
