"""The memory that a step has freed stays with the process of a rank."""

import os
import subprocess
import sys

import pytest

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


def test_a_step_has_no_page_faults_for_what_the_last_one_freed() -> None:
    assert max(faults(keeps=True)) < 8 * TENSORS_PAGES  # two steps, once in each thread
    assert max(faults(keeps=False)) > 15 * TENSORS_PAGES  # which thread has them depends on what was before


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_settings_of_the_environment_count(name: str) -> None:
    value = "glibc.malloc.trim_threshold=0" if name == "GLIBC_TUNABLES" else "0"
    assert min(faults(keeps=True, **{name: value})) > 30 * TENSORS_PAGES
