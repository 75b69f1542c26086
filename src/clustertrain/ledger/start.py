"""What the seconds of one start of the worker group are booked on. Without I/O.

claimed ─▶ [staging] ─▶ trains ─▶ [prepare, compile, steps, evaluations, saves] ─▶ stops ─▶ until
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from clustertrain.ledger.attempt_files import Group, Line
from clustertrain.ledger.book import Booking, summed

_PREPARED = "model, data and checkpoint"


class Stretch:
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
class Start:
    """A start of the workers; its times ascend, on the clock of the driver.

    Attributes:
        trains: when the workers were ready; `stops` if they never were.
        stops: when the training returned or its failure was noticed; `until` if it did neither.
        until: when the next start was claimed, or the attempt ended.
        again: category and cause of a start that follows another; of the first one, that of a start.
        redoes_to: the last step that an earlier start had finished; `redone_for`: why it is repeated.
        failed: why it ended, or empty if it returned or still trains.
        after, why: the category and cause of the seconds between `stops` and `until`.
        of_script: its steps are not known.
    """

    group: Group
    claimed: float
    trains: float
    stops: float
    until: float
    again: tuple[str, str]
    redoes_to: int
    redone_for: str
    failed: str
    after: str
    why: str
    of_script: bool

    @property
    def hung(self) -> bool:
        return self.group.failure is not None and self.group.failure.get("error") == "watchdog"


def booked(start: Start, usual_step_s: float | None) -> tuple[Booking, ...]:
    """The bookings of a start; their sum is `until - claimed`.

    Args:
        usual_step_s: of the earlier starts, or None; for a start that has logged too little.
    """
    ready = Stretch(start.trains - start.claimed)
    ready.take("staging", start.group.staging_s, "data sets")
    trained = Stretch(start.stops - start.trains)
    if start.of_script:
        trained.rest("steps")
    else:
        _book_training(start, trained, step_s(start.group.lines) or usual_step_s)
    after = Stretch(start.until - start.stops).rest(start.after, start.why)
    return summed([*ready.rest(*start.again), *trained.booked, *after])


def step_s(lines: Sequence[Line]) -> float | None:
    """How long a usual step takes: the median over the lines, without the first one if there are more."""
    measured = [line.step_s for line in lines if line.step_s]
    if measured:
        return median(measured[1:] or measured)
    pairs = [(a, b) for a, b in pairwise(lines) if b.step > a.step]
    return median((b.time - a.time) / (b.step - a.step) for a, b in pairs) if pairs else None


def _book_training(start: Start, trained: Stretch, usual_s: float | None) -> None:
    """Line after line of the log: what was measured apart from steps, then the steps; then the tail."""
    at, step = start.trains, start.group.resumes
    marks = sorted([*start.group.evaluations, *(save.begins for save in start.group.saves)])
    alone_s = waited_s = 0.0  # of the lines with nothing but new steps: in a long run these are most
    for line in start.group.lines:
        if line.step <= step:
            continue
        ends, count = min(max(at, line.time), start.stops), line.step - step
        is_new = step > start.group.resumes and step >= start.redoes_to
        if is_new and bisect_left(marks, at) == bisect_right(marks, ends):
            alone_s += ends - at
            waited_s += min(max(0.0, count * line.data_wait_s), ends - at)
            at, step = ends, line.step
            continue
        part = Stretch(ends - at)
        _take_saves(start, part, at, ends)
        in_steps_s = count * line.step_s or (count * usual_s if usual_s else part.left_s)
        if step == start.group.resumes:
            part.take("prepare", part.left_s - in_steps_s, _PREPARED)
            part.take("compile", in_steps_s - (count * usual_s if usual_s else in_steps_s), "the first step")
        elif _evaluations(start, at, ends):
            part.take("evaluation", part.left_s - in_steps_s)
        _take_steps(start, part, step, line.step, count * line.data_wait_s)
        trained.booked += part.booked
        at, step = ends, line.step
    alone = Stretch(alone_s)
    _take_steps(start, alone, step, step, waited_s)
    trained.booked += [*alone.booked, *_tail(start, at, step, usual_s)]


def _tail(start: Start, at: float, step: int, usual_s: float | None) -> list[Booking]:
    """From the last line of the log to the end of the training, or to now."""
    tail, count = Stretch(start.stops - at), max(0, start.group.reached - step)
    evaluations = _evaluations(start, at, start.stops)
    _take_saves(start, tail, at, start.stops)
    in_steps_s = count * usual_s if usual_s else tail.left_s * (count > 0)
    unfinished_s = usual_s or 0.0 if start.failed else 0.0
    if step == start.group.resumes and not start.hung:
        tail.take("prepare", tail.left_s - in_steps_s - unfinished_s, _PREPARED)
    elif evaluations:
        tail.take("evaluation", min(max(evaluations) - at, tail.left_s) - in_steps_s)
    trains_on = not start.failed and start.group.outcome is None
    part = Stretch(tail.left_s if trains_on else min(in_steps_s, tail.left_s))
    tail.left_s -= part.left_s
    _take_steps(start, part, step, step + count, 0.0)
    tail.booked += part.booked
    if start.hung:
        return tail.rest("hang", start.failed)
    tail.take("lost", unfinished_s, start.failed)
    return tail.rest(start.after, start.failed) if start.failed else tail.rest("save", "the last save")


def _take_steps(start: Start, part: Stretch, first: int, last: int, data_wait_s: float) -> None:
    """All that is left: `redone` for the share of the steps that an earlier start had done."""
    again = (min(last, start.redoes_to) - first) / (last - first) if last > first else 0.0
    part.take("redone", part.left_s * again, start.redone_for)
    part.take("data_wait", data_wait_s * (1 - max(0.0, again)), "the steps were faster than the data")
    part.rest("steps")


def _take_saves(start: Start, part: Stretch, begins: float, ends: float) -> None:
    """The waits for the saves that began between two times."""
    saves = start.group.saves
    for each in saves[bisect_left(saves, (begins,)) : bisect_left(saves, (ends,))]:
        part.take("save", each.blocking_s, each.reason)


def _evaluations(start: Start, begins: float, ends: float) -> list[float]:
    """When the evaluations between two times ended."""
    times = start.group.evaluations
    return times[bisect_left(times, begins) : bisect_right(times, ends)]
