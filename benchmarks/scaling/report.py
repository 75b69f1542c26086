"""What was counted and simulated, and what follows from it for a row or a number of ranks."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from scaling.counting_store import Counts
from scaling.growth import Growth, growth
from scaling.simulation import DAY_S, Storage, Training, phase_s, renewal_ettr, simulated_ettr

SIMULATED = (64, 256, 1024, 4096, 16384, 100_000)
DETECTION = "detection of a killed rank"
CLOSED_FORM = "saves only, closed form"
RATES = (6.5, 2.34)
"""Failures per 1,000 node-days on Meta's two research clusters (arXiv 2410.21680)."""


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
class Parameters:
    """What the simulations assume; nothing of this was measured but the first storage's `service_s`."""

    storages: Mapping[str, Storage]
    poll_s: float = 0.2  # Ray Train's controller asks its workers: node/ray_settings.py
    answer_s: float = 0.0001  # to ask one rank whether it lives; the driver waits for all of them together
    fixed_restart_s: float = 30.0  # Ray, the process group, loading: not in the control path
    per_node: int = 8
    save_every_s: float = 600.0
    save_s: float = 0.1
    kills: float = 0.3
    replace_s: float = 1800.0
    repair_s: float = DAY_S
    spare_share: float = 0.02
    days: float = 30.0
    tries: int = 20


@dataclass(frozen=True)
class Report:
    """What scale.py found.

    Attributes:
        foreign_load: the processors that others used.
        seconds: of each phase, by the number of ranks.
        medians_s: of each kind of operation, with the most ranks.
        times: seconds by storage and phase, for the ranks of SIMULATED.
        ettr: by rate and case, for the same.
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
    parameters: Parameters
    times: Mapping[str, Mapping[str, list[float]]]
    ettr: Mapping[str, Mapping[str, list[float]]]


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
    rows: Sequence[Row], parameters: Parameters, seed: int
) -> dict[str, dict[str, list[float]]]:
    """How long start, restart and the marks after a hang take on each storage; the detection of a kill."""
    found: dict[str, dict[str, list[float]]] = {}
    for name, storage in parameters.storages.items():
        rng = random.Random(seed)
        found[name] = {
            phase: [
                phase_s(storage, [row.stage_at(ranks) for row in rows if row.phase == phase], rng)
                for ranks in SIMULATED
            ]
            for phase in ("start", "restart", "hang")
        }
    rng = random.Random(seed)
    waits_s = [rng.uniform(0, parameters.poll_s) for _ in range(1000)]
    polled_s = sum(waits_s) / len(waits_s)
    found["driver"] = {DETECTION: [polled_s + ranks * parameters.answer_s for ranks in SIMULATED]}
    return found


def cases(parameters: Parameters, training: Training) -> dict[str, Training]:
    """The same run without and with spare nodes and with what is kept in memory."""
    spares = math.ceil(training.nodes * parameters.spare_share) + 1
    with_spares = replace(training, spares=spares)
    return {
        "saves only": training,
        "memory tier": replace(training, keeps_step=True),
        "spares, saves only": with_spares,
        "spares, memory tier": replace(with_spares, keeps_step=True),
        "spares, memory survives a node": replace(with_spares, survives_node=True),
    }


def simulated_ettrs(
    restart_s: Sequence[float], parameters: Parameters, seed: int
) -> dict[str, dict[str, list[float]]]:
    """The mean ratio of some tries, by rate and case. `restart_s`: what a restart takes, for SIMULATED."""
    found: dict[str, dict[str, list[float]]] = {}
    for rate in RATES:
        of_rate: dict[str, list[float]] = found.setdefault(f"{rate:g}", {})
        for ranks, down_s in zip(SIMULATED, restart_s, strict=True):
            training = Training(
                math.ceil(ranks / parameters.per_node),
                rate / 1000,
                parameters.save_every_s,
                parameters.save_s,
                down_s,
                kills=parameters.kills,
                replace_s=parameters.replace_s,
                repair_s=parameters.repair_s,
            )
            for name, case in cases(parameters, training).items():
                tries = [
                    simulated_ettr(case, parameters.days * DAY_S, random.Random(seed + number))
                    for number in range(parameters.tries)
                ]
                of_rate.setdefault(name, []).append(sum(tries) / len(tries))
            of_rate.setdefault(CLOSED_FORM, []).append(renewal_ettr(training))
    return found
