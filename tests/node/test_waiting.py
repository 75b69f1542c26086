"""How a wait with a deadline ends."""

import time

import pytest

from clustertrain.node.waiting import wait_until


def test_a_wait_ends_with_the_first_true_value():
    values = iter([None, 0, "", "found", "later"])
    assert wait_until(lambda: next(values), 60, 0.01) == "found"
    assert next(values) == "later"


def test_a_wait_ends_at_its_deadline_with_what_was_returned_last():
    calls = []
    started = time.monotonic()
    assert wait_until(lambda: calls.append(time.monotonic() - started) or [], 0.3, 0.25) == []
    assert len(calls) >= 3, "at the start, after 0.25 s, at the deadline"
    assert 0.3 <= calls[-1] < 5, "the last call is at the deadline, not before and not a whole pause after it"


def test_without_time_the_condition_is_called_once():
    calls = []
    assert wait_until(lambda: calls.append(1), 0, 60) is None
    assert len(calls) == 1


def test_an_error_in_the_condition_ends_the_wait():
    with pytest.raises(ZeroDivisionError):
        wait_until(lambda: 1 / 0, 60, 1)
