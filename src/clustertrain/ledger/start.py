"""One start of the worker group, as its records show it, and what its seconds are booked on. Without I/O.

claimed ─▶ [staging] ─▶ trains ─▶ [prepare, compile, steps, evaluations, saves] ─▶ stops ─▶ until
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from clustertrain.ledger.book import Booking

Record = Mapping[str, Any]
_OF_STEP = ("data_wait_s", "compute_s", "communication_s")


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

    def cut(self, seconds: float) -> Stretch:
        """The next seconds, to be booked as a stretch of their own."""
        part = Stretch(min(seconds, self.left_s))
        self.left_s -= part.left_s
        return part


@dataclass(frozen=True)
class Start:
    """All times are in seconds since 1970, on the clock of the driver, and ascend.

    Attributes:
        again: category and cause of a start that follows another; empty for the first of an attempt.
        trains: when the workers were ready; `stops` if they never were.
        stops: when the training returned or its failure was noticed; `until` if it did neither.
        until: when the next start was claimed, or the attempt ended.
        staging_s: of rank 0 and its node.
        resumes, reached: the last finished step at its beginning and at its end.
        redoes_to: the last step that an earlier start had finished; `redone_for`: why it is repeated.
        records: `train` and `eval`, by time.
        saves: the events `checkpoint`.
        failed: why it ended, or empty if it returned or still trains; `hung`: a watchdog ended it.
        after, why: the category and cause of the seconds between `stops` and `until`.
        of_script: its steps are not known.
    """

    claimed: float
    trains: float
    stops: float
    until: float
    again: tuple[str, str] = ("", "")
    staging_s: float = 0.0
    resumes: int = 0
    reached: int = 0
    redoes_to: int = 0
    redone_for: str = ""
    records: Sequence[Record] = ()
    saves: Sequence[Record] = ()
    returned: bool = False
    failed: str = ""
    hung: bool = False
    after: str = "end"
    why: str = ""
    of_script: bool = False


def booked(start: Start, usual_step_s: float | None) -> tuple[Booking, ...]:
    """The bookings of a start; their sum is `until - claimed`.

    Args:
        usual_step_s: of the earlier starts, or None; for a start that has logged too little.
    """
    ready = Stretch(start.trains - start.claimed)
    ready.take("staging", start.staging_s, "data sets")
    bookings = ready.rest(*(start.again if start.again[0] else ("start", "process group")))
    bookings += _trained(start, step_s(start.records) or usual_step_s)
    bookings += Stretch(start.until - start.stops).rest(start.after, start.why)
    sums: dict[tuple[str, str], float] = defaultdict(float)
    for each in bookings:
        sums[each.category, each.cause] += each.seconds
    return tuple(Booking(category, seconds, cause) for (category, cause), seconds in sums.items())


def number(record: Record, name: str) -> float:
    """A field that other programs may have written: 0 if it is no number."""
    value = record.get(name)
    return float(value) if isinstance(value, int | float) and abs(value) < 1e12 else 0.0


def step_s(records: Sequence[Record]) -> float | None:
    """How long a usual step takes: the median over the records, without the first one if there are more."""
    lines = [record for record in records if record["kind"] == "train"]
    measured = [sum(number(line, name) for name in _OF_STEP) for line in lines if "compute_s" in line]
    if not measured:
        pairs = [(a, b) for a, b in pairwise(lines) if b["step"] > a["step"]]
        measured = [(b["time"] - a["time"]) / (b["step"] - a["step"]) for a, b in pairs]
        return median(measured) if measured else None
    return median(measured[1:] or measured)


def _trained(start: Start, usual_s: float | None) -> list[Booking]:
    """The bookings from `trains` to `stops`."""
    if start.of_script:
        return Stretch(start.stops - start.trains).rest("steps")
    bookings: list[Booking] = []
    at, step, is_first = start.trains, start.resumes, True
    lines = [r for r in start.records if r["kind"] == "train" and r["step"] > start.resumes]
    for line in lines:
        ends = min(max(at, line["time"]), start.stops)
        if line["step"] <= step:
            continue
        bookings += _of_interval(start, (at, ends), (step, line["step"]), line, usual_s, is_first=is_first)
        at, step, is_first = ends, line["step"], False
    return bookings + _of_tail(start, at, step, usual_s, is_first=is_first)


def _of_interval(
    start: Start,
    times: tuple[float, float],
    steps: tuple[int, int],
    line: Record,
    usual_s: float | None,
    *,
    is_first: bool,
) -> list[Booking]:
    """Between two lines of the log: first what was measured apart from steps, then the steps."""
    stretch, count = Stretch(times[1] - times[0]), steps[1] - steps[0]
    _take_saves(start, stretch, times)
    measured_s = count * sum(number(line, name) for name in _OF_STEP)
    in_steps_s = measured_s or count * (usual_s or stretch.left_s / count)
    if is_first:
        stretch.take("prepare", stretch.left_s - in_steps_s, "model, data and checkpoint")
        stretch.take("compile", in_steps_s - count * (usual_s or in_steps_s / count), "the first step")
    elif _evaluated(start.records, times):
        stretch.take("evaluation", stretch.left_s - in_steps_s)
    _take_steps(start, stretch, steps, count * number(line, "data_wait_s"))
    return stretch.booked


def _of_tail(start: Start, at: float, step: int, usual_s: float | None, *, is_first: bool) -> list[Booking]:
    """From the last line of the log to the end of the training, or to now."""
    stretch, count = Stretch(start.stops - at), max(0, start.reached - step)
    is_training = not start.failed and not start.returned
    evals = [r["time"] for r in start.records if r["kind"] == "eval" and at <= r["time"] <= start.stops]
    _take_saves(start, stretch, (at, start.stops))
    in_steps_s = count * usual_s if usual_s else stretch.left_s * (count > 0)
    unfinished_s = usual_s or 0.0 if start.failed else 0.0
    if is_first and not start.hung:
        stretch.take("prepare", stretch.left_s - in_steps_s - unfinished_s, "model, data and checkpoint")
    elif evals:
        stretch.take("evaluation", min(max(evals) - at, stretch.left_s) - in_steps_s)
    part = stretch.cut(stretch.left_s if is_training else in_steps_s)
    _take_steps(start, part, (step, step + count), 0.0)
    stretch.booked += part.booked
    if start.hung:
        return stretch.rest("hang", start.failed)
    if start.failed:
        stretch.take("lost", unfinished_s, start.failed)
        return stretch.rest(start.after, start.failed)
    return stretch.rest("save", "the last save")


def _take_steps(start: Start, stretch: Stretch, steps: tuple[int, int], data_wait_s: float) -> None:
    """All that is left: `redone` for the share of the steps that an earlier start had done."""
    first, last = steps
    again = min(last, start.redoes_to) - first
    if again > 0:
        stretch.take("redone", stretch.left_s * again / (last - first), start.redone_for)
        data_wait_s *= 1 - again / (last - first)
    stretch.take("data_wait", data_wait_s, "the data came later than the steps needed it")
    stretch.rest("steps")


def _take_saves(start: Start, stretch: Stretch, times: tuple[float, float]) -> None:
    """The waits for the saves that began between two times."""
    for event in start.saves:
        if times[0] <= event["time"] - number(event, "write_s") < times[1]:
            stretch.take("save", number(event, "blocking_s"), str(event.get("reason") or "steps"))


def _evaluated(records: Iterable[Record], times: tuple[float, float]) -> bool:
    return any(r["kind"] == "eval" and times[0] <= r["time"] <= times[1] for r in records)
