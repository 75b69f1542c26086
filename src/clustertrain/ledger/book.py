"""The books of a run: the categories, and what is booked in each. Plain data, without I/O."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple


class Category(NamedTuple):
    """What the seconds of a category were used for.

    Attributes:
        productive: whether they brought the training forward.
        goodput: the name in Google's ml-goodput-measurement; empty for time that it does not measure.
    """

    meaning: str
    productive: bool
    goodput: str


CATEGORIES = {
    "steps": Category("Training steps: forward, backward, exchange, update.", True, "TOTAL"),
    "evaluation": Category("Evaluations.", True, "TOTAL"),
    "queue": Category("Waiting in the queue of a scheduler, or for its nodes.", False, ""),
    "start": Category("Starting Ray, the workers and their process group.", False, "TPU_INITIALIZATION"),
    "staging": Category("Fetching data sets.", False, "TRAINING_PREP"),
    "prepare": Category(
        "Building the model, opening the data, reading a checkpoint.", False, "TRAINING_PREP"
    ),
    "compile": Category(
        "What the first step took longer than the others, such as compiling.", False, "PROGRAM_STARTUP"
    ),
    "data_wait": Category("Steps that waited for their batch.", False, "DATA_LOADING_SYNC"),
    "save": Category("Training that stood still for a save.", False, "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"),
    "redone": Category(
        "Steps that an earlier start had done already.", False, "WASTED_PROGRESS_FROM_DISRUPTION"
    ),
    "lost": Category(
        "Steps of which nothing is left: broken off, or never saved.",
        False,
        "WASTED_PROGRESS_FROM_DISRUPTION",
    ),
    "hang": Category(
        "No progress until a watchdog ended it.", False, "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"
    ),
    "restart": Category(
        "From a failure to the next start of the workers.", False, "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"
    ),
    "lost_node": Category(
        "As `restart`, after the loss of a node.", False, "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"
    ),
    "idle": Category("Between two attempts: nobody had started the run again.", False, ""),
    "end": Category(
        "From the last step to the result: the last save, the end of the processes.", False, "OTHER"
    ),
}
"""The categories by their names, the productive ones first."""


@dataclass(frozen=True)
class Booking:
    """Wall seconds of one rank in one of the CATEGORIES, never negative. `cause`: the reason of a loss."""

    category: str
    seconds: float
    cause: str = ""


@dataclass(frozen=True)
class Phase:
    """A part of a run's time with one number of ranks.

    Attributes:
        start, end: in seconds since 1970, on one clock.
        attempt: 0 before the first one.
        restart: the start of the worker group, or None if the workers had not started.
        ranks: that were held; 0 in a queue and between two attempts.
        booked: their sum is `end - start`.
    """

    start: float
    end: float
    attempt: int
    restart: int | None
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
        notes: what could not be measured, and what was corrected.
    """

    phases: tuple[Phase, ...]
    device: str = "CPU"
    devices_per_rank: int = 1
    notes: tuple[str, ...] = ()

    @property
    def wall_s(self) -> float:
        return self.phases[-1].end - self.phases[0].start if self.phases else 0.0

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

    def by_category(self) -> dict[str, float]:
        """The wall seconds of each category that occurs, in the order of CATEGORIES."""
        sums: dict[str, float] = defaultdict(float)
        for booking in self._bookings():
            sums[booking.category] += booking.seconds
        return {name: sums[name] for name in CATEGORIES if name in sums}

    def losses(self) -> tuple[Booking, ...]:
        """What was not productive, summed by category and cause, the largest first."""
        sums: dict[tuple[str, str], float] = defaultdict(float)
        for booking in self._bookings():
            if not CATEGORIES[booking.category].productive:
                sums[booking.category, booking.cause] += booking.seconds
        summed = (Booking(category, seconds, cause) for (category, cause), seconds in sums.items())
        return tuple(sorted(summed, key=lambda booking: -booking.seconds))

    def _bookings(self) -> list[Booking]:
        return [booking for phase in self.phases for booking in phase.booked]
