"""The cluster that the other tests stand on: it is a Kubernetes with KubeRay, and it fails as one does.

These look for the cause when other tests fail. What those show is tested there: a pod that runs with its
volume and a name that is found, every RayJob; policies, test_doors.py and test_site_rules.py; accounts,
test_role.py; Pod Security, test_kube_dry_run.py; Kueue, test_watching_pods.py; an image by another name,
test_rayjob.py.
"""

import socket
import time

import pytest

from clusters.kube_pods import shell_pod

pytestmark = pytest.mark.nightly


def run_to_the_end(cluster, namespace, pod, timeout_s=240):
    """What it printed."""
    cluster.apply(pod, namespace=namespace)
    name = pod["metadata"]["name"]
    cluster.wait_for_pod(namespace, name, "Succeeded", timeout_s)
    return cluster.logs(namespace, name)


def ray_cluster(name):
    template = shell_pod("any", "sleep 600")
    spec = {"headGroupSpec": {"rayStartParams": {}, "template": {"spec": template["spec"]}}}
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": name}, "spec": spec}


def heads(cluster, namespace):
    return cluster.items("pods", namespace, "ray.io/node-type=head")


# A Kubernetes


def test_a_pod_reaches_what_listens_on_this_machine(kube, namespace):
    with socket.create_server((kube.machine, 0)) as listening:
        port = listening.getsockname()[1]
        kube.apply(shell_pod("caller", f"busybox nc {kube.machine} {port}"), namespace=namespace)
        listening.settimeout(60)
        connection, (address, _) = listening.accept()
        connection.close()
    assert address == kube.node_address


def test_what_does_not_exist_is_unreachable_at_once(kube, namespace):
    script = "busybox nslookup nowhere.example.org; busybox timeout 5 busybox nc 192.0.2.77 80; echo $?"
    said = run_to_the_end(kube, namespace, shell_pod("looker", script))
    assert "NXDOMAIN" in said
    assert "unreachable" in said.lower()


def test_gpus_that_nobody_has_are_scheduled(kube_alone, namespace):
    pod = shell_pod("trainer", "true")
    pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 1}}
    kube_alone.apply(pod, namespace=namespace)
    kube_alone.wait_for(
        lambda: any("Insufficient nvidia.com/gpu" in event for event in kube_alone.events(namespace)),
        30,
        "nobody misses a GPU",
    )
    kube_alone.set_capacity(**{"nvidia.com/gpu": 4})
    kube_alone.wait_for_pod(namespace, "trainer", "Succeeded")


def test_the_api_server_goes_away_and_comes_back_in_both_ways(kube_alone, namespace):
    kube_alone.apply(shell_pod("counter", "while true; do date; sleep 0.2; done"), namespace=namespace)
    kube_alone.wait_for_pod(namespace, "counter")
    kube_alone.pause("apiserver")
    silent = kube_alone.kubectl("get", "nodes", "--request-timeout=2s", check=False)
    assert silent.returncode
    assert "refused" not in silent.stderr
    kube_alone.resume("apiserver")
    kube_alone.wait_for_api_server()
    kube_alone.kill("apiserver")
    assert "refused" in kube_alone.kubectl("get", "nodes", check=False).stderr
    kube_alone.start("apiserver")
    kube_alone.wait_for_api_server()
    assert kube_alone.phase(namespace, "counter") == "Running"


# KubeRay


def test_the_operator_makes_pods_but_for_the_time_when_it_is_stopped(kube_alone, namespace):
    kube_alone.apply(ray_cluster("one"), namespace=namespace)
    kube_alone.wait_for(lambda: len(heads(kube_alone, namespace)) == 1, 30, "no head")
    kube_alone.stop_operator()
    kube_alone.apply(ray_cluster("two"), namespace=namespace)
    time.sleep(3)
    assert len(heads(kube_alone, namespace)) == 1
    kube_alone.start_operator()
    kube_alone.wait_for(lambda: len(heads(kube_alone, namespace)) == 2, 30, "no second head")
