"""A simulation of discrete events: a phase of a run on a storage with a queue."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable
from dataclasses import dataclass


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
