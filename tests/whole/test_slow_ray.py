"""A Ray that starts late, does not start, or does not answer, on one machine."""

import socket

import pytest

from support.mounts import apart
from support.slow_ray import late_raylet
from support.whole_run import ONE_WORKER

pytestmark = pytest.mark.timeout(900)

FAULTY = {"task": "faulty:Faulty", "train": {"epochs": 1, "batch_size": 4}, **ONE_WORKER}


@pytest.mark.nightly  # in CI: driver/test_starting_ray.py
def test_a_ray_that_starts_late_is_waited_for_and_a_failed_start_is_repeated(make_run, tmp_path):
    """Ray itself gives up after 30 s."""
    run = make_run("late", **FAULTY).start(within=apart(late_raylet(tmp_path, delay_s=35)))
    output = run.end(0, within_s=400)
    assert "Ray did not start: raylet ended with code 1" in output
    assert "starting Ray again (start 2)" in output
    (started,) = [event for event in run.events if event["kind"] == "ray_started"]
    assert started["seconds"] > 30


def test_a_given_ray_that_accepts_connections_and_is_silent_ends_the_run(make_run):
    """RAY_ADDRESS names another program, or a Ray that hangs."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        run = make_run("silent", **FAULTY, failures={"ray_start": "5s"})
        output = run.start(RAY_ADDRESS=address, RAY_AUTH_MODE="disabled").end(3, within_s=400)
    assert (run.result.state, run.result.cause) == ("failed", "cluster")
    assert "failures.ray_start" in output or f"RAY_ADDRESS={address}" in output
