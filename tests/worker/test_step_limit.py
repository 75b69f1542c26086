"""The limit of a step, learnt from the steps before it."""

import pytest

from clustertrain.job.sections import Failures
from clustertrain.worker.step_limit import UPPER_S, StepLimit


def limit_after(steps_s, alarms=0):
    limit = StepLimit(alarms)
    for step_s in steps_s:
        limit.add(step_s)
    return limit.limit_s


@pytest.mark.parametrize(
    ("steps_s", "expected_s"),
    [
        ([], UPPER_S),
        ([0.1] * 9, UPPER_S),  # too few
        ([0.1] * 10, 20),
        ([0.1] * 9 + [3.0], 30),
        ([3.0] + [0.1] * 99, 30),
        ([3.0] + [0.1] * 100, 20),  # the slow one is no longer among the last 100
        ([61.0] * 10, UPPER_S),
    ],
)
def test_it_is_ten_times_the_slowest_of_the_last_steps_within_bounds(steps_s, expected_s):
    assert limit_after(steps_s) == expected_s


def test_each_alarm_widens_it_until_a_false_one_cannot_use_up_the_retries():
    limits = [limit_after([0.1] * 10, alarms) for alarms in range(Failures().most_restarts + 1)]
    assert limits == [20, 80, 320, UPPER_S]
