"""The bookings of the seconds of one start of the worker group.

There is no I/O, except to read the records.

claimed ─▶ [staging] ─▶ trains ─▶ [prepare, steps, evaluations, saves] ─▶ stops ─▶ until
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from clustertrain.observe.ledger.attempt_files import OneStart, number, of_kind
from clustertrain.observe.ledger.book import Booking
from clustertrain.run_files.streams.events import Record


class TimeBudget:
    """Seconds of which parts are booked: never more than there are, and what is left at the end."""

    def __init__(self, seconds: float) -> None:
        self.left_s = max(0.0, seconds)
        self.booked: list[Booking] = []

    def take(self, category: str, seconds: float, cause: str = "") -> None:
        taken_s = min(max(0.0, seconds), self.left_s)
        if taken_s > 0:
            self.booked.append(Booking(category, taken_s, cause))
            self.left_s -= taken_s

    def rest(self, category: str, cause: str = "") -> list[Booking]:
        self.take(category, self.left_s, cause)
        return self.booked


@dataclass(frozen=True)
class StartBooks:
    """A start of the workers; its times ascend.

    Attributes:
        trains: when the workers were ready; `stops` if they never were.
        stops: when the training returned or its failure was noticed; the end of the start if it did neither.
        usual_s: how long a step takes, or None if it is unknown.
        redoes_to: the last step that an earlier start had finished; `redone_for`: why it is repeated.
        failed: whether it ended without a result of its training.
        after, why: the category and cause of the seconds after `stops`.
    """

    group: OneStart
    trains: float
    stops: float
    usual_s: float | None
    redoes_to: int
    redone_for: str
    failed: bool
    after: str
    why: str

    def training(self) -> list[Booking]:
        """Return the bookings from `trains` to `stops`.

        Each step takes as long as a usual one. The time after the last sign of life is the work that a
        failure broke off, or the last save.
        """
        group, resumes, reached = self.group, self.group.resumes, self.group.reached
        trained, usual_s = TimeBudget(self.stops - self.trains), self.usual_s or 0.0
        hung = group.failure is not None and group.failure.get("error") == "watchdog"
        broken_s = usual_s if self.failed and not hung else 0.0
        steps_s = (reached - resumes) * usual_s if self.usual_s else trained.left_s * (reached > resumes)
        first = self.trains if hung else self.stops - steps_s - broken_s
        if group.lines:
            first = group.lines[0]["time"] - (group.lines[0]["step"] - resumes) * usual_s
        trained.take("prepare", first - self.trains, "model, data and checkpoint")
        signs = ((each["time"], each["step"]) for each in (*group.lines, *group.evaluations))
        last, step = max([(max(first, self.trains), resumes), *signs])
        tail_s = self.stops - last - (reached - step) * usual_s
        for save in of_kind(group.events, "checkpoint"):
            if save["time"] - save.get("write_s", 0.0) < last:
                trained.take("save", save.get("blocking_s", 0.0), str(save.get("reason") or "steps"))
        if self.failed:
            trained.take("lost", min(tail_s, broken_s), self.why)
            trained.take("hang" if hung else self.after, tail_s - broken_s, self.why)
        elif group.outcome is not None:
            trained.take("save", tail_s, "the last save")
        else:
            steps_s += max(0.0, tail_s)
        if group.evaluations:
            trained.take("evaluation", trained.left_s - steps_s)
        again = min(1.0, max(0, self.redoes_to - resumes) / max(1, reached - resumes))
        trained.take("redone", trained.left_s * again, self.redone_for)
        waited_s = data_wait_s(group.lines, resumes) * (1 - again)
        trained.take("data_wait", waited_s, "the steps were faster than the data")
        return trained.rest("steps")


def step_s(lines: Sequence[Record]) -> float | None:
    """Return how many seconds a usual step takes, or None if that is unknown.

    It is the median over the lines, without the first one if there are more.
    """
    names = ("data_wait_s", "compute_s", "communication_s")
    measured = [sum(number(line, name) for name in names) for line in lines if "compute_s" in line]
    if any(measured):
        return median(measured[1:] or measured)
    pairs = [(a, b) for a, b in pairwise(lines) if b["step"] > a["step"]]
    return median((b["time"] - a["time"]) / (b["step"] - a["step"]) for a, b in pairs) if pairs else None


def data_wait_s(lines: Sequence[Record], step: int) -> float:
    """Return how long the steps after this one have waited for their batches, in seconds."""
    waited_s = 0.0
    for line in lines:
        waited_s += max(0, line["step"] - step) * number(line, "data_wait_s")
        step = max(step, line["step"])
    return waited_s
