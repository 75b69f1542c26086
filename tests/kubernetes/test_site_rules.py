"""Clusters with rules of their own: quotas that require limits and count objects, LimitRanges, runtime
classes. What such a site refuses, `submit` reports, if it can before anything is applied.
"""

import pytest

from clusters.kube_api import manifest
from clusters.kube_client import Kubernetes
from clusters.kube_pods import shell_pod
from clustertrain.errors import EXIT_CLUSTER
from kubernetes.cluster_user import User, admission_policy, inert


def limit(kube: Kubernetes, namespace: str, amount: str, *keys: str) -> None:
    """A quota, as soon as it counts."""
    quota = manifest("ResourceQuota", "site", spec={"hard": dict.fromkeys(keys, amount)})
    kube.apply(quota, namespace=namespace)

    def counts(quotas: list[dict]) -> bool:
        return any(set(each.get("status", {}).get("hard", ())) == set(keys) for each in quotas)

    kube.watch("resourcequotas", namespace, counts, 120, "the quota does not count", name="site")


def wait_for_its_pods(own: User) -> None:
    for role in ("head", "worker"):
        selector = f"clustertrain.io/run={own.name},clustertrain.io/role={role}"
        otherwise = f"the operator creates no {role}"
        own.kube.watch("pods", own.namespace, bool, 180, otherwise, selector=selector)


def test_a_quota_that_requires_limits_admits_all_pods(user, kube, namespace):
    keys = (f"{kind}.{each}" for kind in ("requests", "limits") for each in ("cpu", "memory"))
    limit(kube, namespace, "100Gi", *keys)
    own = user()
    own("submit")
    wait_for_its_pods(own)


def test_a_quota_on_disk_requires_no_limits(user, kube, namespace):
    """As opposed to CPU and memory: KubeRay's own init container has none."""
    limit(kube, namespace, "100Gi", "requests.ephemeral-storage", "limits.ephemeral-storage")
    user(**inert())("submit")


@pytest.mark.parametrize(
    "key",
    [
        pytest.param("count/networkpolicies.networking.k8s.io", marks=pytest.mark.nightly),
        "count/rayjobs.ray.io",
    ],
)
def test_a_quota_that_counts_what_is_applied_refuses_it_before(user, kube, namespace, key):
    limit(kube, namespace, "0", key)
    assert "exceeded quota: site" in user()("submit", code=EXIT_CLUSTER).stderr
    assert not kube.items("rayjobs", namespace)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        pytest.param("services", "FailedToCreateService", marks=pytest.mark.nightly),
        ("requests.memory", "FailedToCreateHeadPod"),
    ],
)
def test_submit_prints_the_quota_that_keeps_pods_from_being_created(user, kube, namespace, key, said):
    """The RayJob is applied, since a quota may have room later."""
    limit(kube, namespace, "0", key)
    printed = user()("submit").stdout
    assert said in printed and "exceeded quota: site" in printed
    assert kube.items("rayjobs", namespace)


@pytest.fixture
def owners_policy(kube: Kubernetes, namespace: str):
    """A site that demands an owner of all but what KubeRay makes of its own: Secret, Service, Job."""
    demanded = {
        "": ["configmaps", "pods", "persistentvolumeclaims"],
        "networking.k8s.io": ["networkpolicies"],
        "ray.io": ["rayjobs", "rayclusters"],
    }
    rules = {
        f"has(object.metadata.{kind}) && 'example.org/owner' in object.metadata.{kind}": (
            f"every object names its owner in its {kind}"
        )
        for kind in ("labels", "annotations")
    }
    with admission_policy(kube, namespace, demanded, rules):
        yield


def test_a_site_that_demands_an_owner_of_every_object_gets_it(user, kube, namespace, owners_policy):
    own = user()
    refused = "every object names its owner"
    kube.wait_for(lambda: refused in own("submit", code=None).stderr, 120, "the policy is not in force")
    own("submit", code=EXIT_CLUSTER)
    given = "{example.org/owner: vision}"
    own("submit", "--set", f"kubernetes.labels={given}", "--set", f"kubernetes.annotations={given}")
    wait_for_its_pods(own)


def test_pods_of_a_run_resolve_names_by_the_dns_of_the_cluster_and_by_no_other_server(user, kube, namespace):
    own = user(**inert())
    own("submit")
    of_run = {"clustertrain.io/run": own.name, "clustertrain.io/role": "submitter"}
    server = "busybox nc -ll -p 5353 -e busybox echo hello"
    kube.apply(
        shell_pod("inside", "busybox sleep 600", of_run), shell_pod("server", server), namespace=namespace
    )
    for name in ("inside", "server"):
        kube.wait_for_pod(namespace, name)
    address = kube.get("pods", "server", namespace)["status"]["podIP"]

    def succeeds(command: str) -> bool:
        argv = ("busybox", "timeout", "5", "busybox", "sh", "-c", command)
        return kube.execute(namespace, "inside", *argv, check=False).returncode == 0

    reaches = f"busybox nc -w 2 {address} 5353 </dev/null"
    assert succeeds(reaches)  # nobody enforces the policies yet
    with kube.network_policies(namespace):
        assert not succeeds(reaches)
        assert succeeds("busybox nslookup kubernetes.default.svc.cluster.local")
