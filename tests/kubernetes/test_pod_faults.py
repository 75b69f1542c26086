"""Faults around a run that trains in pods: memory, the node, the operator, the API server.

Each is one run with several facts. What strikes the node or the control plane has the cluster to itself.
"""

import re
import time

import pytest

from clusters.kube_api import manifest
from clusters.kube_conf import NODE
from clustertrain.launchers.kubernetes.observed.pods import seconds
from clustertrain.run_files.streams.step_counter import reached_step
from kubernetes.rayjob_runs import HELD, HELD_STEP
from support.cluster_jobs import slow
from support.whole_run import same_weights

pytestmark = pytest.mark.timeout(900)

AWAY_S = 30.0
RAY_WAITS_S = 10
DEADLINE_S = 300  # to start takes a minute or two; the node controller waits 50 s for a kubelet
LATE_S = 20  # the operator looks every 3 s, on a busy machine


@pytest.mark.faults
@pytest.mark.nightly  # in CI: the limit of a cgroup in whole/test_limits.py
def test_a_worker_killed_at_the_memory_limit_of_its_pod_is_named_and_not_started_again(make, kube, namespace):
    """A pod has 512 Mi for its worker, 1 Gi for Ray. A bit below both Ray would end the worker by itself."""
    secret = manifest("Secret", "kernel-alone", stringData={"RAY_memory_monitor_refresh_ms": "0"})
    kube.apply(secret, namespace=namespace)
    run = make(
        "hungry",
        task="hungry:Hungry",
        args={"fault": "memory", "at_call": 5},
        train={"epochs": 2, "batch_size": 4, "log_every": 1},
        resources={"memory_per_worker": "512Mi"},
        kubernetes={"secrets": ["kernel-alone"]},
    )
    run.command("submit", "--wait", "--to", "kubernetes", str(run.job_file), code=1)
    assert (run.result.state, run.result.cause, run.result.restarts) == ("failed", "out_of_memory", 0)
    assert len(run.run_dir.attempts()) == 1
    text = run.result.text
    assert re.match(r"rank 1 \(pid \d+ on hungry-\S+-worker-\S+\) was killed by the kernel", text)
    assert "allows 1.5 GiB of memory" in text
    assert re.search(r"oom_kill: 0 → 1\b", text)
    run.wait("Failed")
    first = run.command("status", "--to", "kubernetes", str(run.job_file)).stdout.splitlines()[0]
    assert first.split(maxsplit=1) == ["failed", text.splitlines()[0]]


@pytest.mark.nightly  # in CI: a pod that is replaced at once (test_rayjob.py)
def test_a_run_on_a_cordoned_node_waits_with_the_schedulers_reason_and_goes_on_after_uncordon(
    make, kube_alone, uninterrupted
):
    """For longer than Ray Train waits for its workers, which it would count as one failure too many."""
    env = {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": f"{RAY_WAITS_S}"}
    run = make("cordoned", **slow(1), env=env, failures={"retries": 1}).submit()
    run.wait_for_step(6)
    kube_alone.cordon()
    killed = run.pods("worker")[0]
    kube_alone.delete("pods", killed, run.namespace, grace_s=1)
    run.wait_for_event("restarting")
    time.sleep(2 * RAY_WAITS_S)
    said = run.command("status", "--to", "kubernetes", str(run.job_file)).stdout.splitlines()
    reason = "FailedScheduling: 0/1 nodes are available: 1 node(s) were unschedulable"
    assert said[0].startswith("waiting ") and reason in said[0], said
    assert "head runs, 1 of 2 workers run" in "\n".join(said)
    kube_alone.uncordon()
    run.wait()
    assert (run.result.state, run.result.step, run.result.restarts) == ("done", 21, 1)
    assert len(run.run_dir.attempts()) == 1
    assert same_weights(run.weights(), uninterrupted(2))


@pytest.mark.nightly  # in CI: slurm/test_slurm_status.py without a controller
def test_a_run_trains_on_while_the_operator_and_then_the_api_server_are_away(make, kube_alone, uninterrupted):
    run = make("unattended", **slow(4)).submit()
    run.wait_for_step(2)
    kube_alone.stop_operator()
    assert steps_within(run, 10) >= 1
    kube_alone.start_operator()
    kube_alone.kill("apiserver")
    assert steps_within(run, AWAY_S) >= 5
    kube_alone.start("apiserver")
    kube_alone.wait_for_api_server()
    assert run.status()["jobDeploymentStatus"] == "Running"
    run.wait()
    assert (run.result.state, run.result.step, run.result.restarts) == ("done", 21, 0)
    assert len(run.run_dir.attempts()) == 1
    assert same_weights(run.weights(), uninterrupted(2))


@pytest.mark.nightly  # in CI: a run that cannot start ends at its deadline (test_deadlines.py)
def test_a_run_on_a_lost_node_is_named_and_ends_at_its_deadline(make, kube_alone):
    """Its pods run on, since only the kubelet is gone; the API server keeps them as they were."""
    run = make("deserted", **HELD, kubernetes={"deadline": f"{DEADLINE_S}s"}).submit()
    run.wait_for_step(HELD_STEP)
    kube_alone.kill("kubelet")

    def first_line():
        return run.command("status", "--to", "kubernetes", str(run.job_file)).stdout.partition("\n")[0]

    kube_alone.wait_for(lambda: f"node {NODE} is NotReady" in first_line(), 150, "status names no node")
    assert f"kubectl delete node {NODE}" in first_line()
    assert run.status()["jobDeploymentStatus"] == "Running"
    run.wait("Failed", DEADLINE_S)
    status = run.status()
    assert status["reason"] == "DeadlineExceeded"
    assert DEADLINE_S <= seconds(status["endTime"]) - seconds(status["startTime"]) <= DEADLINE_S + LATE_S
    assert first_line().split(maxsplit=1) == ["lost", "reached kubernetes.deadline"]


def steps_within(run, seconds):
    """How far it comes in this time, by its files alone: no API server is asked."""
    before = reached_step(run.attempt.restart(0))
    time.sleep(seconds)
    return reached_step(run.attempt.restart(0)) - before
