"""A Ray cluster of containers on one machine: it trains, keeps its secrets, and a worker may be lost."""

import json
import re
import time
import urllib.request

import pytest

from clusters.composed import ComposedCluster, OnCluster
from clusters.composed import why_not as why_not_composed
from clusters.containers import RESTRICTED, podman, told, why_not
from support.whole_run import FAULTY, same_weights

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1500)]
SLOW = {**FAULTY, "args": {"step_s": 0.5}, "checkpoint": {"every": {"steps": 2}, "keep_last": 3}}
WORKER = "worker-2"
SECRETS = ("/run/clustertrain/token", "/run/clustertrain/s3")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if reason := why_not() or why_not_composed():
        pytest.skip(reason)
    with ComposedCluster(tmp_path_factory.mktemp("work")) as made:
        yield made


@pytest.mark.nightly  # in CI: whole/test_on_s3.py
def test_a_run_on_the_s3_server_ends_the_same(cluster, uninterrupted):
    """Its address and its credentials are in the containers alone."""
    run = OnCluster(cluster, "on-s3", **FAULTY)
    output = run.start("--set", "storage=s3://runs/tests").end(0)
    assert "state       done (finished)" in output
    asked = podman("exec", cluster.name("head"), "clustertrain", "ckpt", "verify", "s3://runs/tests/on-s3")
    assert "00000021" in asked.stdout


def test_the_secrets_are_in_files_of_their_owner_and_in_nothing_else(cluster):
    shown = podman("exec", cluster.name("head"), "stat", "--format=%a %u", *SECRETS).stdout
    assert shown.splitlines() == ["600 1000", "600 1000"]
    secrets = re.findall("[0-9a-f]{64}", podman("exec", cluster.name("head"), "cat", *SECRETS).stdout)
    assert len(secrets) == 2
    for service in ("head", "worker-1", "s3", "tensorboard"):
        told_by_podman = podman("inspect", cluster.name(service)).stdout + cluster.output()
        assert not [secret for secret in secrets if secret in told_by_podman]


def test_the_head_refuses_a_request_without_the_token(cluster):
    image = podman("inspect", "--format={{.ImageName}}", cluster.name("head")).stdout.strip()
    stranger = (
        *("run", "--rm", *RESTRICTED, f"--network={cluster.network}", "--env=RAY_AUTH_MODE=token"),
        *(f"--env=RAY_AUTH_TOKEN={'0' * 64}", image),
    )
    jobs = podman(*stranger, "ray", "job", "list", "--address=http://head:8265", check=False)
    assert jobs.returncode != 0
    assert "auth" in told(jobs).lower()
    joining = ("timeout", "60", "ray", "start", "--address=head:6379", "--num-cpus=64")
    assert podman(*stranger, *joining, check=False).returncode != 0


def test_tensorboard_shows_the_runs_on_this_machine_alone(cluster):
    with urllib.request.urlopen(f"http://127.0.0.1:{cluster.tensorboard_port}/data/environment") as answer:
        assert json.load(answer)["data_location"] == "/storage"
    published = podman("port", "--all").stdout.splitlines()
    ours = [line for line in published if line.endswith(f":{cluster.tensorboard_port}")]
    assert [line.split(" -> ")[1] for line in ours] == [f"127.0.0.1:{cluster.tensorboard_port}"]


# tests/kubernetes/test_rayjob.py loses a worker's container in CI; tests/slurm loses nodes and networks.
@pytest.mark.nightly
@pytest.mark.faults
def test_a_run_whose_worker_is_frozen_waits_for_it_and_ends_the_same(cluster, uninterrupted):
    run = OnCluster(cluster, "loses-a-worker", **SLOW).start()
    run.wait_for_step(6)
    podman("pause", cluster.name(WORKER))
    try:
        run.wait_for_event("restarting")
        time.sleep(10)  # it has to wait, for there is a CPU too few
        assert run.process.poll() is None, run.end(0)
    finally:
        podman("unpause", cluster.name(WORKER))
    output = run.end(0)
    assert (run.result.state, run.result.step, run.result.world_size) == ("done", 21, 2), output
    assert same_weights(run.weights(), uninterrupted(2))
    started = next(event for event in run.events if event["kind"] == "group_started")
    assert {rank["host"] for rank in started["ranks"]} == {"worker-1", "worker-2"}
