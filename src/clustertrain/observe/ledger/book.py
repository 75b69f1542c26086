"""The books of a run: the categories, and what is booked in each. Plain data, without I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from clustertrain.node.units import time_text


class Category(NamedTuple):
    """What the seconds of a category were used for, and whether they brought the training forward."""

    meaning: str
    productive: bool = False


CATEGORIES = {
    "steps": Category("training steps: forward, backward, exchange, update", productive=True),
    "evaluation": Category("evaluations", productive=True),
    "queue": Category("waiting in the queue of a scheduler"),
    "start": Category("Ray, the processes of the workers, their process group"),
    "staging": Category("fetching data sets"),
    "prepare": Category("building the model, opening the data, reading a checkpoint, compiling"),
    "data_wait": Category("steps that waited for their batch"),
    "save": Category("training that stood still for a save"),
    "redone": Category("steps that an earlier start had finished"),
    "lost": Category("steps of which nothing is left: broken off, never saved, replaced"),
    "hang": Category("no progress until a watchdog ended it"),
    "restart": Category("from a failure to the workers of the next start"),
    "lost_node": Category("as restart, or as queue, after the loss of a node"),
    "idle": Category("between two attempts: nobody had started the run again"),
    "end": Category("from the last save to the result"),
}
"""The categories by their names, the productive ones first."""


@dataclass(frozen=True)
class Booking:
    """Wall seconds of one rank in one of the CATEGORIES, never negative. `cause`: the reason of a loss."""

    category: str
    seconds: float
    cause: str = ""


def summed(bookings: Iterable[Booking]) -> tuple[Booking, ...]:
    """Return one booking for each category and cause."""
    sums: dict[tuple[str, str], float] = defaultdict(float)
    for each in bookings:
        sums[each.category, each.cause] += each.seconds
    return tuple(Booking(category, seconds, cause) for (category, cause), seconds in sums.items())


@dataclass(frozen=True)
class Phase:
    """A part of a run's time with one number of ranks.

    Attributes:
        start, end: in seconds since 1970.
        ranks: that were held; 0 in a queue and between two attempts.
        booked: their sum is `end - start`.
    """

    start: float
    end: float
    ranks: int
    booked: tuple[Booking, ...]

    @property
    def wall_s(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class Ledger:
    """The books of a generation of a run.

    Attributes:
        phases: without gaps, from the first submission or claim to the end of the run or now.
        device: "GPU" or "CPU": what a rank holds.
        devices_per_rank: 1 for a rank without GPUs.
        notes: what could not be measured.
    """

    phases: tuple[Phase, ...]
    device: str = "CPU"
    devices_per_rank: int = 1
    notes: tuple[str, ...] = ()

    @property
    def wall_s(self) -> float:
        return sum(phase.wall_s for phase in self.phases)

    @property
    def device_hours(self) -> float:
        """GPU-hours that the ranks held. Of a run without GPUs: CPU-hours, with one CPU for each rank."""
        return sum(phase.ranks * phase.wall_s for phase in self.phases) * self.devices_per_rank / 3600

    @property
    def ettr(self) -> float | None:
        """Meta's effective training time ratio: productive / all wall seconds, from the submission on."""
        if not self.wall_s:
            return None
        productive = (s for name, s in self.by_category().items() if CATEGORIES[name].productive)
        return min(1.0, sum(productive) / self.wall_s)

    @property
    def total_text(self) -> str:
        """Wall time, device hours and ETTR."""
        ettr = "" if self.ettr is None else f", ETTR {self.ettr:.3f}"
        return f"{time_text(self.wall_s)}, {self.device_hours:.3g} {self.device}-hours{ettr}"

    def by_category(self) -> dict[str, float]:
        """Return the wall seconds of each category that occurs, in the order of CATEGORIES."""
        sums: dict[str, float] = defaultdict(float)
        for booking in self._summed():
            sums[booking.category] += booking.seconds
        return {name: sums[name] for name in CATEGORIES if name in sums}

    def losses(self) -> tuple[Booking, ...]:
        """Return the bookings that were not productive, summed by category and cause, the largest first."""
        losses = (each for each in self._summed() if not CATEGORIES[each.category].productive)
        return tuple(sorted(losses, key=lambda booking: -booking.seconds))

    def _summed(self) -> tuple[Booking, ...]:
        return summed(booking for phase in self.phases for booking in phase.booked)
