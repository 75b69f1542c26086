"""What was counted and simulated, and what follows from it for a row or a number of ranks."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scaling.counting_store import Counts
from scaling.growth import Growth, growth
from scaling.simulation import Storage, phase_s

SIMULATED = (64, 256, 1024, 4096, 16384, 100_000)


@dataclass(frozen=True)
class Row:
    """What the actors of one kind did in a phase, by the number of ranks: how many they are, and of each the
    operations and the bytes."""

    phase: str
    actor: str
    members: Mapping[int, int]
    operations: Mapping[int, float]
    moved_bytes: Mapping[int, float]

    @property
    def growth(self) -> Growth:
        return growth(self.operations)

    def stage_at(self, ranks: int) -> tuple[int, int]:
        """(members, operations of each) for any number of ranks."""
        return round(growth(self.members).at(ranks)), math.ceil(self.growth.at(ranks) - 1e-6)


@dataclass(frozen=True)
class Report:
    """What scale.py found.

    Attributes:
        foreign_load: the processors that others used.
        seconds: of each phase, by the number of ranks.
        medians_s: of each kind of operation, with the most ranks.
        storages: those of the simulations; all but the first are assumed.
        times: seconds by storage and phase, for the ranks of SIMULATED.
    """

    taken: str
    command: str
    seed: int
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    foreign_load: float
    rows: Sequence[Row]
    seconds: Mapping[str, Mapping[str, float]]
    medians_s: Mapping[str, float]
    storages: Mapping[str, Storage]
    times: Mapping[str, Mapping[str, list[float]]]


def rows_of(found: Mapping[int, Counts]) -> list[Row]:
    """A row for each kind of actor in each phase, in their order."""
    largest = found[max(found)]
    rows = []
    for phase, actor in largest.uses:
        uses = {ranks: counts.uses[phase, actor] for ranks, counts in sorted(found.items())}
        members = {ranks: len(use.members) for ranks, use in uses.items()}
        rows.append(
            Row(
                phase,
                actor,
                members,
                {ranks: use.total / members[ranks] for ranks, use in uses.items()},
                {ranks: use.moved_bytes / members[ranks] for ranks, use in uses.items()},
            )
        )
    return rows


def simulated_times(
    rows: Sequence[Row], storages: Mapping[str, Storage], seed: int
) -> dict[str, dict[str, list[float]]]:
    """How long start, restart and the marks after a hang take on each storage."""
    found: dict[str, dict[str, list[float]]] = {}
    for name, storage in storages.items():
        rng = random.Random(seed)
        found[name] = {
            phase: [
                phase_s(storage, [row.stage_at(ranks) for row in rows if row.phase == phase], rng)
                for ranks in SIMULATED
            ]
            for phase in ("start", "restart", "hang")
        }
    return found
