"""The cluster that the other tests stand on: it is a Kubernetes with KubeRay, and it fails as one does.

These look for the cause when other tests fail. What those show is tested there: a pod that runs with its
volume and a name that is found, every RayJob; policies, test_doors.py and test_site_rules.py; accounts,
test_role.py; Pod Security, test_kube_dry_run.py; Kueue, test_watching_pods.py; an API server that goes away,
test_following.py; an image by another name, test_rayjob.py.
"""

import time

import pytest

from clusters.kube_pods import shell_pod

pytestmark = pytest.mark.nightly


def ray_cluster(name):
    template = shell_pod("any", "sleep 600")
    spec = {"headGroupSpec": {"rayStartParams": {}, "template": {"spec": template["spec"]}}}
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": name}, "spec": spec}


def heads(cluster, namespace):
    return cluster.items("pods", namespace, "ray.io/node-type=head")


def test_what_does_not_exist_is_unreachable_at_once(kube, namespace):
    script = "busybox nslookup nowhere.example.org; busybox timeout 5 busybox nc 192.0.2.77 80; echo $?"
    kube.apply(shell_pod("looker", script), namespace=namespace)
    kube.wait_for_pod(namespace, "looker", "Succeeded")
    said = kube.logs(namespace, "looker")
    assert "NXDOMAIN" in said
    assert "unreachable" in said.lower()


def test_the_operator_makes_pods_but_for_the_time_when_it_is_stopped(kube_alone, namespace):
    kube_alone.apply(ray_cluster("one"), namespace=namespace)
    kube_alone.wait_for(lambda: len(heads(kube_alone, namespace)) == 1, 30, "no head")
    kube_alone.stop_operator()
    kube_alone.apply(ray_cluster("two"), namespace=namespace)
    time.sleep(3)
    assert len(heads(kube_alone, namespace)) == 1
    kube_alone.start_operator()
    kube_alone.wait_for(lambda: len(heads(kube_alone, namespace)) == 2, 30, "no second head")
