"""Two simulations of discrete events: a phase of a run on a storage with a queue, and weeks of failures,
saves, restarts and spare nodes."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterable
from dataclasses import dataclass

DAY_S = 86_400.0


@dataclass(frozen=True)
class Storage:
    """A storage that serves `channels` operations at a time, each for `service_s` on average."""

    service_s: float
    channels: int


def stage_s(storage: Storage, members: int, operations: int, rng: random.Random) -> float:
    """How long it takes until each of these members has done its operations, one after the other; all begin
    at once, and an operation waits until a channel is free."""
    free = [0.0] * storage.channels
    ready = [(0.0, member, operations) for member in range(members) if operations]
    ends_s = 0.0
    while ready:
        at_s, member, left = heapq.heappop(ready)
        done_s = max(at_s, free[0]) + rng.expovariate(1 / storage.service_s)
        heapq.heapreplace(free, done_s)
        ends_s = max(ends_s, done_s)
        if left > 1:
            heapq.heappush(ready, (done_s, member, left - 1))
    return ends_s


def phase_s(storage: Storage, stages: Iterable[tuple[int, int]], rng: random.Random) -> float:
    """The sum of stages, (members, operations of each); each begins when the one before has ended."""
    return sum(stage_s(storage, members, operations, rng) for members, operations in stages)


@dataclass(frozen=True)
class Training:
    """What decides how much of the time a run trains.

    Attributes:
        nodes: of the run; each fails `failures_per_node_day` times a day while the run trains.
        save_every_s: training between two saves; each save stops the training for `save_s`.
        restart_s: from the failure to the next new step, if there is a node at once.
        kills: the share of the failures that kill ranks and leave their node, with its memory, in the run.
        keeps_step: a killed rank costs one step instead of the work since the last save.
        survives_node: a lost node does as well (a what-if).
        spares: nodes that are ready to replace a lost one (a what-if), which returns as a spare after
            `repair_s`.
        replace_s: how long the run waits for another node if there is no spare.
    """

    nodes: int
    failures_per_node_day: float
    save_every_s: float = 600.0
    save_s: float = 0.1
    restart_s: float = 60.0
    kills: float = 0.0
    keeps_step: bool = False
    survives_node: bool = False
    spares: int = 0
    replace_s: float = 0.0
    repair_s: float = DAY_S

    @property
    def failures_per_s(self) -> float:
        return self.nodes * self.failures_per_node_day / DAY_S


def simulated_ettr(training: Training, seconds: float, rng: random.Random) -> float:
    """The effective training time ratio: the time of training that was not lost, of all the time."""
    return _Run(training, rng).ettr(seconds)


class _Run:
    """Events are (time, number, kind, start): those of an earlier start of the workers are passed over."""

    def __init__(self, training: Training, rng: random.Random) -> None:
        self._training, self._rng = training, rng
        self._events: list[tuple[float, int, str, int]] = []
        self._pushed = self._start = 0
        self._spares, self._productive_s, self._saved_at_s = training.spares, 0.0, 0.0

    def ettr(self, seconds: float) -> float:
        self._push(0.0, "up")
        while (event := heapq.heappop(self._events))[0] < seconds:
            now_s, _, kind, start = event
            if kind in ("repaired", "up") or start == self._start:
                getattr(self, f"_{kind}")(now_s)
        return self._productive_s / seconds

    def _push(self, at_s: float, kind: str) -> None:
        self._pushed += 1
        heapq.heappush(self._events, (at_s, self._pushed, kind, self._start))

    def _up(self, now_s: float) -> None:
        self._start += 1
        self._saved_at_s = now_s
        self._push(now_s + self._rng.expovariate(self._training.failures_per_s), "fails")
        self._push(now_s + self._training.save_every_s + self._training.save_s, "saved")

    def _saved(self, now_s: float) -> None:
        self._productive_s += self._training.save_every_s
        self._saved_at_s = now_s
        self._push(now_s + self._training.save_every_s + self._training.save_s, "saved")

    def _fails(self, now_s: float) -> None:
        training, self._start = self._training, self._start + 1
        is_kill = self._rng.random() < training.kills
        if training.survives_node or (is_kill and training.keeps_step):
            self._productive_s += min(now_s - self._saved_at_s, training.save_every_s)
        wait_s = 0.0
        if not is_kill and self._spares:
            self._spares -= 1
            self._push(now_s + training.repair_s, "repaired")
        elif not is_kill:
            wait_s = training.replace_s
        self._push(now_s + wait_s + training.restart_s, "up")

    def _repaired(self, now_s: float) -> None:
        self._spares += 1


def renewal_ettr(training: Training) -> float:
    """The expected ratio in closed form without spares, if what was not saved is lost: of each time to a
    failure the whole intervals count."""
    rate, interval_s = training.failures_per_s, training.save_every_s + training.save_s
    down_s = training.restart_s + (1 - training.kills) * training.replace_s
    return rate * training.save_every_s / (math.expm1(rate * interval_s) * (1 + rate * down_s))
