"""The start of Ray on a node: what is repeated and for how long, and what is reported.

tests/whole/test_slow_ray.py and tests/slurm/test_one_node.py start it.
"""

import pytest

from clustertrain.driver.ray_cluster import Deadline
from clustertrain.driver.ray_node import _NotUp, last_words, repeated
from clustertrain.errors import ClusterError

BROKEN = "raylet ended with code 1\n  | ModuleNotFoundError: No module named 'x' (pid {})"
LATE = "raylet ended with code -6\n  | Timed out waiting for file /tmp/session_{}/port"


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr("clustertrain.driver.ray_node._PAUSE_S", 0.0)


def failing(*reasons):
    """A start that fails for each of these reasons, in this order, and then succeeds."""
    left = list(reasons)

    def start(_):
        if left:
            raise _NotUp(left.pop(0))
        return "up"

    return start


def test_a_start_that_was_late_is_repeated_within_the_deadline_and_counted():
    reported = []
    start = failing(*(LATE.format(n) for n in range(4)))
    assert repeated(start, Deadline(60.0, "failures.ray_start"), reported.append) == "up"
    assert [line.splitlines()[-1] for line in reported] == [
        f"starting Ray again (start {n})" for n in range(2, 6)
    ]


def test_an_error_that_does_not_come_again_costs_one_start():
    reported = []
    assert repeated(failing(BROKEN.format(1)), Deadline(60.0, "k"), reported.append) == "up"
    assert len(reported) == 1


def test_a_start_that_is_late_until_the_deadline_ends_the_run_with_the_key():
    with pytest.raises(ClusterError) as caught:
        repeated(failing(LATE.format(1)), Deadline(0.0, "slurm.nodes_wait"), lambda _: None)
    assert "within 0 s (slurm.nodes_wait), in 1 start: raylet ended with code -6" in str(caught.value)
    assert "The machine is busy, or its disk is slow: start again later, or raise slurm.nodes_wait" in str(
        caught.value
    )


@pytest.mark.parametrize("folder", [None, "empty"])
def test_without_logs_there_are_no_words(tmp_path, folder):
    assert last_words(folder and str(tmp_path)) == []
