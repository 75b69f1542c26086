"""A Ray that starts late, does not start, or does not answer, on one machine."""

import os
import socket
import tempfile
import time
from pathlib import Path

import pytest

from given_ray import end_ray, start_ray
from mounts import apart
from slow_ray import broken_agent, late_raylet
from whole_run import ONE_WORKER

pytestmark = pytest.mark.timeout(900)

FAULTY = {"task": "faulty:Faulty", "train": {"epochs": 1, "batch_size": 4}, **ONE_WORKER}


def test_a_ray_that_starts_late_is_waited_for_and_a_failed_start_is_repeated(make_run, tmp_path):
    """Ray itself gives up after 30 s."""
    run = make_run("late", **FAULTY).start(within=apart(late_raylet(tmp_path, delay_s=35)))
    output = run.end(0, within_s=400)
    assert "Ray did not start: raylet ended with code 1" in output
    assert "starting Ray again (start 2)" in output
    (started,) = [event for event in run.events if event["kind"] == "ray_started"]
    assert started["seconds"] > 30


@pytest.mark.nightly  # in CI: the test above waits in the same class, and every RayJob starts with this hook
def test_ray_start_of_a_pod_waits_as_long_as_the_job_allows(tmp_path):
    """The command is the operator's. Without RAY_START_HOOK, Ray gives up after 30 s: the container ends."""
    job = tmp_path / "job.yaml"
    job.write_text("name: a\nfunction: m:f\nkubernetes: {start_deadline: 2m}\n")
    environment = {
        "RAY_AUTH_MODE": "disabled",
        "CLUSTERTRAIN_JOB": str(job),
        "RAY_START_HOOK": "clustertrain.launchers.kubernetes.in_pod.ray_start.wait_as_long_as_the_job",
    }
    with tempfile.TemporaryDirectory(prefix="ct-test-") as folder:
        address = f"127.0.0.1:{20000 + os.getpid() % 10000}"
        here = ["--node-ip-address=127.0.0.1", f"--temp-dir={folder}/ray"]
        head = [f"--port={address.rpartition(':')[2]}", "--head", "--include-dashboard=false", *here]
        within = apart(late_raylet(tmp_path, delay_s=35))
        began = time.monotonic()
        nodes = [start_ray(folder, "head", environment, *head, within=within)]
        took = time.monotonic() - began
        nodes.append(start_ray(folder, "worker", environment, f"--address={address}", *here))
        log = (Path(folder) / "head.log").read_text()
        for node in reversed(nodes):
            end_ray(node)
    assert took > 35
    assert "Ray did not start: raylet ended with code 1" in log
    assert "starting Ray again (start 2)" in log


def test_the_reason_why_ray_does_not_start_is_in_the_message(make_run, tmp_path):
    run = make_run("broken", **FAULTY).start(within=apart(broken_agent(tmp_path)))
    output = run.end(3, within_s=400)
    assert (run.result.state, run.result.cause) == ("failed", "cluster")
    assert "raylet ended with code" in run.result.text
    assert "ModuleNotFoundError: No module named 'a_package_that_ray_needs'" in output
    assert "Traceback" not in output


def test_a_given_ray_that_accepts_connections_and_is_silent_ends_the_run(make_run):
    """RAY_ADDRESS names another program, or a Ray that hangs."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        run = make_run("silent", **FAULTY, failures={"ray_start": "5s"})
        output = run.start(RAY_ADDRESS=address, RAY_AUTH_MODE="disabled").end(3, within_s=400)
    assert (run.result.state, run.result.cause) == ("failed", "cluster")
    assert "failures.ray_start" in output or f"RAY_ADDRESS={address}" in output
