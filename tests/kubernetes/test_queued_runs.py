"""Runs that train in a queue of Kueue with room for one: who waits, who is sent away, who comes back.

What comes with a higher priority here is a Job with a pod that sleeps, so that the test says when it ends.
"""

import pytest

from clusters.kube_pods import shell_pod
from kubernetes.cluster_user import User, bind_role
from kubernetes.rayjob_runs import CLAIM, RayJobRun
from support.cluster_jobs import slow
from support.whole_run import same_weights

pytestmark = pytest.mark.timeout(900)
ROOM_CPUS = 2  # a run asks for 1.4 with its submitter
KUEUE = "kueue.x-k8s.io/v1beta1"


def local_queue(namespace: str) -> list[dict]:
    """The queue `team`, where whoever has a higher priority sends others away. What belongs to no namespace
    bears the name of this one."""
    room = [{"name": "cpu", "nominalQuota": str(ROOM_CPUS)}, {"name": "memory", "nominalQuota": "2Ti"}]
    group = {"coveredResources": ["cpu", "memory"], "flavors": [{"name": namespace, "resources": room}]}
    spec = {"namespaceSelector": {}, "resourceGroups": [group]}
    spec["preemption"] = {"withinClusterQueue": "LowerPriority"}
    local = {"name": "team", "namespace": namespace}
    return [
        {"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": namespace}, "spec": {}},
        {"apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": {"name": namespace}, "spec": spec},
        {"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": local, "spec": {"clusterQueue": namespace}},
    ]


def priority(name: str, value: int) -> dict:
    """A WorkloadPriorityClass, which belongs to no namespace."""
    return {"apiVersion": KUEUE, "kind": "WorkloadPriorityClass", "metadata": {"name": name}, "value": value}


@pytest.fixture
def make(kube_alone, namespace, image, tmp_path):
    """Runs of low priority in the queue of a namespace."""
    kube_alone.load(image)
    kube_alone.make_volume(namespace, CLAIM)
    kube_alone.queue_jobs(namespace)
    low, high = (f"{namespace}-{each}" for each in ("low", "high"))
    queue = local_queue(namespace)
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


@pytest.mark.nightly  # in CI: what Kueue says, in launchers/kubernetes/test_kubernetes_state.py
def test_a_run_waits_for_its_turn_and_one_that_is_preempted_saves_first_and_comes_back(
    make, kube_alone, namespace, uninterrupted
):
    first, second = make("first").submit(), make("second").submit()
    why = "queued (scheduler): Suspended (waits in queue team of Kueue: Pending: couldn't assign flavors"
    kube_alone.wait_for(lambda: why in status(second), 240, "status does not say why")
    assert "insufficient unused quota for cpu" in status(second)
    less = User(
        kube_alone, namespace, second.job_file, bind_role(kube_alone, namespace, ("workloads", "list"))
    )
    assert 'cannot list resource "workloads"' in less("status").stdout
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
