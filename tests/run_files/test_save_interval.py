"""The interval of `checkpoint.every: auto` against the cost by Daly's equation."""

import math

import pytest

from clustertrain.job.sections import Failures
from clustertrain.run_files.save_interval import best_interval_s, first_interval_s, mtbf_s

DAY_S = 86_400.0


def cost(interval_s, stall_s, behind_s, restart_s, mtbf_s):
    """The expected part of the time that is not training, by Daly's equation 20."""
    per_interval_s = mtbf_s * math.exp((restart_s + behind_s) / mtbf_s)
    per_interval_s *= math.expm1((interval_s + stall_s) / mtbf_s)
    return 1 - interval_s / per_interval_s


@pytest.mark.parametrize(
    ("stall_s", "behind_s", "restart_s", "mtbf_s"),
    [
        (5, 0, 60, 4 * 3600),
        (7, 300, 30, 4 * 3600),
        (0.2, 3, 20, 600),
        (60, 0, 300, 3 * 3600),
        (30, 0, 0, 300),
    ],
)
def test_no_other_interval_costs_less(stall_s, behind_s, restart_s, mtbf_s):
    best_s = best_interval_s(stall_s, mtbf_s)
    least = cost(best_s, stall_s, behind_s, restart_s, mtbf_s)
    for factor in (0.7, 1.4):
        assert cost(best_s * factor, stall_s, behind_s, restart_s, mtbf_s) > least - 1e-4


def test_intervals_of_the_papers_and_of_extremes():
    assert best_interval_s(5, 1e9) == pytest.approx(math.sqrt(2 * 5 * 1e9), rel=1e-3)  # Young's
    assert best_interval_s(10, 4) == 4  # Daly: a save takes longer than two failures are apart
    assert mtbf_s(Failures(), 1) * 6.5 == pytest.approx(1000 * DAY_S)
    assert mtbf_s(Failures(mtbf="80h"), 8) == 10 * 3600
    assert (first_interval_s(1e7), first_interval_s(0.5)) == (300, 0.5)
