"""Runs that train in a queue of Kueue with room for one: who waits, who is sent away, who comes back.

What comes with a higher priority here is a Job with a pod that sleeps, so that the test says when it ends.
"""

import pytest

from clusters.kube_pods import shell_pod
from kubernetes.queues import local_queue, priority
from kubernetes.rayjob_runs import CLAIM, RayJobRun, slow
from support.whole_run import same_weights

pytestmark = pytest.mark.timeout(900)
ROOM_CPUS = 2  # a run asks for 1.4 with its submitter


@pytest.fixture
def make(kube_alone, namespace, image, tmp_path):
    """Runs of low priority in the queue of a namespace."""
    kube_alone.load(image)
    kube_alone.make_volume(namespace, CLAIM)
    kube_alone.queue_jobs(namespace)
    low, high = (f"{namespace}-{each}" for each in ("low", "high"))
    queue = local_queue(namespace, ROOM_CPUS, preempts=True)
    kube_alone.apply(*queue, priority(low, 10), priority(high, 1000))

    def make_run(name):
        section = {"queue": {"name": "team", "priority_class": low}}
        return RayJobRun(kube_alone, namespace, tmp_path, name, image=image, kubernetes=section, **slow(3))

    yield make_run
    for each in (low, high):
        kube_alone.delete("workloadpriorityclasses", each)


def status(run):
    return run.command("status", "--to", "kubernetes", str(run.job_file)).stdout


def is_ready(jobs):
    return any(each["status"].get("ready") == 1 for each in jobs)


def is_suspended(run):
    return run.cluster.get("rayjobs", run.name, run.namespace)["spec"].get("suspend", False)


def urgent_job(namespace):
    labels = {
        "kueue.x-k8s.io/queue-name": "team",
        "kueue.x-k8s.io/priority-class": f"{namespace}-high",
    }
    pod = shell_pod("any", "busybox sleep 600")
    pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "1"
    spec = {"suspend": True, "template": {"spec": pod["spec"]}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "urgent", "labels": labels},
        "spec": spec,
    }


@pytest.mark.nightly
def test_a_run_waits_for_its_turn_and_one_that_is_preempted_saves_first_and_comes_back(
    make, kube_alone, namespace, uninterrupted
):
    first, second = make("first").submit(), make("second").submit()
    why = "queued (scheduler): Suspended (waits in queue team of Kueue: Pending: couldn't assign flavors"
    kube_alone.wait_for(lambda: why in status(second), 240, "status does not say why")
    assert "insufficient unused quota for cpu" in status(second)
    assert is_suspended(second) and not is_suspended(first)

    first.wait_for_step(2)
    kube_alone.apply(urgent_job(namespace), namespace=namespace)
    kube_alone.watch("jobs", namespace, is_ready, 100, "the urgent one does not run", name="urgent")
    kube_alone.wait_for(first.attempt.result.read, 120, "it does not end")
    sent_away = first.result
    assert (sent_away.state, sent_away.cause) == ("preempted", "preempted")
    assert sent_away.checkpoint is not None
    assert first.status()["jobDeploymentStatus"] == "Suspended"
    assert "Preempted: Preempted to accommodate a workload" in status(first)
    first.wait_until_the_cluster_is_gone()

    kube_alone.delete("jobs", "urgent", namespace)
    first.wait_for_attempt(2)
    assert is_suspended(second)
    first.wait()
    assert [event["step"] for event in first.events if event["kind"] == "resumed"] == [sent_away.step]
    assert (first.result.state, first.result.step) == ("done", 21)
    assert same_weights(first.weights(), uninterrupted(2))

    kube_alone.wait_for(lambda: second.pods("worker"), 240, "the second does not start")
    assert second.status()["startTime"] >= first.status()["endTime"]
