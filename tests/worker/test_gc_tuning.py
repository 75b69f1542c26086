"""A process that starts looks rarely for garbage, and as usual from its first step on."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from clustertrain.worker.machine.gc_tuning import collect_as_usual, collect_rarely


@pytest.fixture(autouse=True)
def as_python_starts() -> Iterator[None]:
    before = gc.get_threshold()
    gc.enable()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


class Circle:
    def __init__(self) -> None:
        self.itself = self


def searches_meanwhile() -> int:
    """How often Python searched the youngest objects while 2,000 were made."""
    before = gc.get_stats()[0]["collections"]
    kept = [[] for _ in range(2000)]
    assert len(kept) == 2000
    return gc.get_stats()[0]["collections"] - before


@pytest.mark.slow
def test_a_start_is_not_interrupted_and_steps_find_their_garbage():
    assert searches_meanwhile() >= 1
    collect_rarely()
    assert searches_meanwhile() == 0
    collect_as_usual()
    assert searches_meanwhile() >= 1


@pytest.mark.slow
def test_garbage_of_the_start_is_freed_before_the_first_step():
    collect_rarely()
    dead = weakref.ref(Circle())
    collect_as_usual()
    assert dead() is None
    assert gc.get_freeze_count() > 0


def test_what_the_users_code_has_set_stays():
    collect_rarely()
    gc.set_threshold(5000, 10, 10)
    collect_as_usual()
    assert gc.get_threshold() == (5000, 10, 10)
