"""Names a rank whose steps take much longer than those of the others, which all wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from clustertrain.training.measured.step_times import Times

TIMES_OF_OTHERS = 1.5
AT_LEAST_S = 0.01  # slower per step: short steps vary more than this on a busy machine
_MOST_RANKS = 64  # whose times are in each record: more would make its lines long


class Stragglers:
    """Compares the ranks at each line of the log; each rank is named once per start of the workers."""

    def __init__(self) -> None:
        self._slow: set[int] = set()  # at the last line
        self._named: set[int] = set()

    def new(self, of_ranks: Sequence[Times]) -> list[int]:
        """Return the ranks that are named now; `of_ranks` has the times of each rank since the last line.

        A rank is named at its second slow line in a row, so that one slow interval is not named.
        """
        slow = {rank for rank in range(len(of_ranks)) if _is_slow(rank, of_ranks)}
        new = (slow & self._slow) - self._named
        self._slow, self._named = slow, self._named | new
        return sorted(new)


def _others_s(rank: int, of_ranks: Sequence[Times]) -> float:
    return median(times.own_s for other, times in enumerate(of_ranks) if other != rank)


def _is_slow(rank: int, of_ranks: Sequence[Times]) -> bool:
    if len(of_ranks) == 1:
        return False
    own_s, others_s = of_ranks[rank].own_s, _others_s(rank, of_ranks)
    return own_s > TIMES_OF_OTHERS * others_s and own_s - others_s > AT_LEAST_S


def by_rank(own_s: Sequence[float]) -> dict[str, float | list[float]]:
    """Return the entry of the ranks in a record of the metrics: seconds per step without waiting for others.

    Of many ranks it has only the slowest one.
    """
    if len(own_s) <= _MOST_RANKS:
        return {"rank_s": [round(seconds, 6) for seconds in own_s]}
    slowest = max(range(len(own_s)), key=own_s.__getitem__)
    return {"slowest_rank": slowest, "slowest_rank_s": own_s[slowest]}


def straggler_text(rank: int, host: str, of_ranks: Sequence[Times]) -> str:
    """Return the warning about a rank, in two lines."""
    times, others_s = of_ranks[rank], _others_s(rank, of_ranks)
    if times.data_wait_s > times.compute_s:
        remedy = "Look at its data: the disk of that node, train.loader_workers, other jobs on its CPUs."
    else:
        remedy = "Look at that node: its GPU's clock and temperature (nvidia-smi -q), other jobs on its CPUs."
    return (
        f"rank {rank} on {host} is slow: it takes {_ms(times.own_s)} per step (waiting for data "
        f"{_ms(times.data_wait_s)}, computing {_ms(times.compute_s)}), "
        f"{times.own_s / max(others_s, 1e-9):.1f} times the median of the other ranks, {_ms(others_s)}.\n"
        f"All ranks wait for it in each step. {remedy}"
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"
