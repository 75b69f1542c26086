"""Neither page faults nor searches for garbage interrupt the steps of a rank."""

import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from clustertrain.worker.machine.gc_tuning import collect_as_usual, collect_rarely

STEPS = """
import resource, threading
from clustertrain.worker.machine.heap import keep_freed_memory
import torch

if {keeps}:
    keep_freed_memory()

def steps(n):
    for _ in range(n):
        kept = [torch.ones(size) for size in range(150_000, 400_000, 50_000)]

def faults_of(target):
    steps(5)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    thread = threading.Thread(target=target, args=(100,))
    thread.start()
    thread.join()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

steps(5)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
steps(100)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, faults_of(steps))
"""
TENSORS_PAGES = 5 * 250_000 * 4 // 4096  # of one step


def faults(*, keeps: bool, **environment: str) -> tuple[int, int]:
    """Page faults of 100 steps in the main thread, and in another one, as the backward pass is."""
    program = [sys.executable, "-c", STEPS.format(keeps=keeps)]
    found = subprocess.run(
        program, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    in_main, in_thread = map(int, found.stdout.split())
    return in_main, in_thread


@pytest.mark.slow
def test_a_step_has_no_page_faults_for_what_the_last_one_freed() -> None:
    assert max(faults(keeps=True)) < 8 * TENSORS_PAGES  # two steps, once in each thread
    assert max(faults(keeps=False)) > 15 * TENSORS_PAGES  # which thread has them depends on what was before


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_settings_of_the_environment_count(name: str) -> None:
    value = "glibc.malloc.trim_threshold=0" if name == "GLIBC_TUNABLES" else "0"
    assert min(faults(keeps=True, **{name: value})) > 30 * TENSORS_PAGES


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
def test_a_start_is_not_interrupted_and_its_garbage_is_freed_before_the_first_step():
    assert searches_meanwhile() >= 1
    collect_rarely()
    assert searches_meanwhile() == 0
    dead = weakref.ref(Circle())
    collect_as_usual()
    assert dead() is None
    assert gc.get_freeze_count() > 0
    assert searches_meanwhile() >= 1


def test_what_the_users_code_has_set_stays():
    collect_rarely()
    gc.set_threshold(5000, 10, 10)
    collect_as_usual()
    assert gc.get_threshold() == (5000, 10, 10)
