"""The suite and the measurements for GPUs, on a CPU: they do not break unseen where no GPU is."""

import json
import os
import sys
from pathlib import Path

import pytest

from support.commands import ran

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def test_the_suite_passes_on_a_cpu():
    """Without the whole runs, which tests/whole has for a CPU."""
    suite = ["make", "test-gpu", f"PYTHON={sys.executable}"]
    options = "-n 0 -p no:cacheprovider --ignore=tests/gpu/test_gpu_runs.py"
    environment = {**os.environ, "GPU_SUITE_DEVICE": "cpu", "PYTEST_ADDOPTS": options}
    done = ran(suite, code=0, cwd=ROOT, env=environment)
    assert "7 passed" in done.stdout, done.stdout


def test_each_measurement_gives_a_result_on_a_cpu(tmp_path):
    numbers = ["3", "5", "6"]  # those that use the most of the kit
    program = [sys.executable, "benchmarks/gpu.py", str(tmp_path), *numbers]
    ran(program, code=0, cwd=ROOT, env={**os.environ, "GPU_BENCH_CPU": "1"})
    results = json.loads((tmp_path / "gpu.json").read_text())
    assert [*results] == numbers
    assert not [result for result in results.values() if "error" in result["result"]], results
