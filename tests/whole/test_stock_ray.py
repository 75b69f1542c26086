"""CLUSTERTRAIN_RAY=stock: runs with Ray's public API alone, while the private one is gone."""

import os
import signal
from pathlib import Path

import pytest

from example_modules import clustertrain
from whole_run import FAULTY, ONE_WORKER

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "job.yaml"
# Each process of the run imports it: none of them finds anything of Ray's private API.
GONE = """
from clustertrain.driver import ray_internals

def _module(name):
    raise ImportError(f"{name} is gone")

ray_internals._MODULES = dict.fromkeys(ray_internals._MODULES, "ray.gone")
ray_internals._module = _module
"""


@pytest.fixture
def stock(tmp_path):
    """The environment of a run with Ray's public API, on a Ray that has no private one."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(GONE)
    return {"CLUSTERTRAIN_RAY": "stock", "PYTHONPATH": str(folder)}


def test_the_example_needs_nothing_of_rays_private_api(tmp_path, stock):
    options = ("--no-check", "--set", f"storage={tmp_path}")
    done = clustertrain("run", str(DIGITS), *options, env={**os.environ, **stock})
    told = [line for line in done.stdout.splitlines() if "CLUSTERTRAIN_RAY=stock: Ray 2." in line]
    assert len(told) == 1 and "clustertrain is tested with ray<" in told[0], done.stdout
    accuracy = next(line for line in done.stdout.splitlines() if line.startswith("accuracy"))
    assert float(accuracy.split()[1]) >= 0.97


@pytest.mark.nightly
def test_a_killed_worker_is_named_and_the_group_starts_again(make_run, stock, tmp_path):
    run = make_run(
        "killed",
        **FAULTY,
        args={"fault": "kill", "rank": 1, "at_call": 13, "marker": str(tmp_path / "struck")},
        checkpoint={"every": {"steps": 4}, "keep_last": 2},
    )
    assert "died of signal 9 (SIGKILL)" in run.start(**stock).end(0)
    assert (run.result.step, run.result.restarts) == (21, 1)
    died = next(e for e in run.events if e["kind"] == "worker_died")
    assert (died["rank"], died["signal"]) == (1, signal.SIGKILL)


@pytest.mark.nightly
def test_the_same_error_twice_ends_the_run(make_run, stock):
    fault = {"fault": "raise", "rank": 0, "at_call": 5}
    run = make_run("twofold", **FAULTY, args=fault, **ONE_WORKER)  # several go on after the step that failed
    assert "twice at step" in run.start(**stock).end(1)
    assert (run.result.cause, run.result.restarts) == ("same_error_twice", 1)


def test_another_value_is_refused(make_run):
    run = make_run("mistyped", function="own_loop:train", args={"steps": 1})
    text = "CLUSTERTRAIN_RAY='stok': the values are stock and none"
    assert text in run.start(CLUSTERTRAIN_RAY="stok").end(3)
