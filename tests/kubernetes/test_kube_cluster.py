"""The cluster that the other tests stand on: it is a Kubernetes with KubeRay, and it fails as one does.

These look for the cause when other tests fail, and are not in CI, where those would show the same: a pod that
runs with its volume and a name that is found, every RayJob; policies, test_doors.py; accounts, test_role.py;
Pod Security, test_kube_dry_run.py; Kueue, test_watching_pods.py; an image by another name, test_rayjob.py.
GPUs, the operator and the API server that go away are for tests that are not in CI either.
"""

import socket
import subprocess
import time
from pathlib import Path

import pytest

from clusters.kube_api import Refused
from clusters.kube_images import program_image
from clusters.kube_pods import UID, shell_pod

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


def test_a_pod_runs_finds_a_service_by_name_and_writes_to_the_volume(kube, namespace):
    folder = kube.make_volume(namespace, "runs")
    service = {"clusterIP": "None", "selector": {"app": "server"}}
    kube.apply(
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "there"}, "spec": service},
        shell_pod("server", "busybox sleep 600", {"app": "server"}),
        namespace=namespace,
    )
    kube.wait_for_pod(namespace, "server")
    address = kube.get("pods", "server", namespace)["status"]["podIP"]
    script = (
        f"until busybox nslookup there.{namespace}.svc.cluster.local; do busybox sleep 0.2; done;"
        "busybox id -u > /runs/uid"
    )
    pod = shell_pod(
        "looker", script, volumes=[{"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}}]
    )
    pod["spec"]["containers"][0]["volumeMounts"] = [{"name": "runs", "mountPath": "/runs"}]
    assert address in run_to_the_end(kube, namespace, pod)
    assert (folder / "uid").read_text() == f"{UID}\n"


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


def test_a_pod_of_root_is_refused(kube, namespace):
    pod = shell_pod("root", "true")
    pod["spec"]["securityContext"] = {"runAsUser": 0}
    with pytest.raises(Refused, match='violates PodSecurity "restricted:latest"'):
        kube.apply(pod, namespace=namespace)


def test_an_image_comes_from_podman_under_each_of_its_names(kube, namespace):
    one, two = (f"localhost/{namespace}:{name}" for name in ("one", "two"))
    kube.inside("true")  # there is a podman beside a cluster of ours
    # Another one each time: the cluster does not look again for what it has loaded, which podman then loses.
    archive = program_image(one, Path("/bin/busybox"), ["/bin/busybox", namespace])
    subprocess.run(["podman", "load", "--quiet"], input=archive, check=True, capture_output=True)
    subprocess.run(["podman", "tag", one, two], check=True)
    pod = shell_pod("runner", "echo it runs")
    pod["spec"]["containers"][0].update(image=two, imagePullPolicy="Never")
    try:
        kube.load(one)
        kube.load(two)
        assert run_to_the_end(kube, namespace, pod) == "it runs\n"
    finally:
        subprocess.run(["podman", "rmi", one, two], check=True, capture_output=True)


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


def test_an_account_may_do_what_its_role_says_and_no_more(kube, namespace):
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]
    account = kube.account(namespace, rules)
    kube.kubectl("get", "pods", kubeconfig=account)  # its namespace is known
    refused = kube.kubectl("delete", "pods", "--all", kubeconfig=account, check=False)
    assert refused.returncode == 0  # there is none to delete
    refused = kube.kubectl("delete", "pod", "any", kubeconfig=account, check=False)
    assert 'cannot delete resource "pods"' in refused.stderr


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


# Network policies


SERVE = "for port in 8080 9090; do busybox nc -ll -p $port -e busybox echo hello & done; busybox sleep 600"


@pytest.fixture
def server(kube, namespace):
    """The address of a pod that answers on ports 8080, named web, and 9090; `friend` and `stranger` call."""
    pod = shell_pod("server", SERVE, {"app": "server"})
    pod["spec"]["containers"][0]["ports"] = [{"name": "web", "containerPort": 8080}]
    callers = [shell_pod(name, "busybox sleep 600", {"app": name}) for name in ("friend", "stranger")]
    kube.apply(pod, *callers, namespace=namespace)
    for name in ("server", "friend", "stranger"):
        kube.wait_for_pod(namespace, name)
    return kube.get("pods", "server", namespace)["status"]["podIP"]


def policy(app, **spec):
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": app},
        "spec": {"podSelector": {"matchLabels": {"app": app}}, **spec},
    }


def connects(cluster, namespace, name, address, port):
    call = f"busybox timeout 2 busybox nc -w 2 {address} {port} < /dev/null"
    return cluster.execute(namespace, name, "busybox", "sh", "-c", call, check=False).returncode == 0


def test_a_policy_lets_in_what_it_allows_and_nothing_else(kube, namespace, server):
    friend = {"podSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["friend"]}]}}
    kube.apply(policy("server", ingress=[{"from": [friend], "ports": [{"port": 8080}]}]), namespace=namespace)
    everything = {(name, port) for name in ("friend", "stranger") for port in (8080, 9090)}

    def passed():
        return {(name, port) for name, port in everything if connects(kube, namespace, name, server, port)}

    assert passed() == everything  # nobody enforces it
    with kube.network_policies(namespace):
        assert passed() == {("friend", 8080)}
        kube.delete("networkpolicies", "server", namespace)
        kube.wait_for(lambda: passed() == everything, 20, "the policy outlives itself")


def test_a_policy_lets_out_what_it_allows_and_nothing_else(kube, namespace, server):
    dns = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
    }
    names = {"to": [dns], "ports": [{"port": 53, "protocol": "UDP"}]}
    web = {"to": [{"podSelector": {"matchLabels": {"app": "server"}}}], "ports": [{"port": "web"}]}
    others = {"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": [f"{server}/32"]}}]}
    api = ("kubernetes.default.svc.cluster.local", 443)
    kube.apply(policy("friend", policyTypes=["Egress"], egress=[names, web]), namespace=namespace)
    with kube.network_policies(namespace):
        assert connects(kube, namespace, "friend", server, 8080)
        assert not connects(kube, namespace, "friend", server, 9090)
        assert not connects(kube, namespace, "friend", *api)
        assert connects(kube, namespace, "stranger", *api)
        wider = policy("friend", policyTypes=["Egress"], egress=[names, web, others])
        kube.apply(wider, namespace=namespace)
        kube.wait_for(lambda: connects(kube, namespace, "friend", *api), 20, "the change is not seen")
        assert not connects(kube, namespace, "friend", server, 9090)


# Kueue

QUEUES = [
    {"kind": "ResourceFlavor", "metadata": {"name": "any"}},
    {
        "kind": "ClusterQueue",
        "metadata": {"name": "one-job"},
        "spec": {
            "namespaceSelector": {},
            "resourceGroups": [
                {
                    "coveredResources": ["cpu", "memory"],
                    "flavors": [
                        {
                            "name": "any",
                            "resources": [
                                {"name": "cpu", "nominalQuota": "10m"},
                                {"name": "memory", "nominalQuota": "1Gi"},
                            ],
                        }
                    ],
                }
            ],
        },
    },
    {"kind": "LocalQueue", "metadata": {"name": "queue"}, "spec": {"clusterQueue": "one-job"}},
]


def queued_job(name):
    pod = shell_pod("any", "busybox sleep 2")
    labels = {"kueue.x-k8s.io/queue-name": "queue"}
    spec = {"suspend": True, "template": {"spec": pod["spec"]}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
    }


def test_kueue_holds_the_second_of_two_until_the_first_has_ended(kube_alone, namespace):
    kube_alone.queue_jobs(namespace)
    queues = [{"apiVersion": "kueue.x-k8s.io/v1beta1", **queue} for queue in QUEUES]
    kube_alone.apply(*queues, namespace=namespace)
    kube_alone.apply(queued_job("first"), namespace=namespace)
    kube_alone.wait_for(lambda: not suspended(kube_alone, namespace, "first"), 30, "the first is held")
    kube_alone.apply(queued_job("second"), namespace=namespace)
    kube_alone.wait_for(
        lambda: any("insufficient unused quota" in event for event in kube_alone.events(namespace)),
        30,
        "Kueue does not say why",
    )
    assert suspended(kube_alone, namespace, "second")
    assert not kube_alone.get("jobs", "first", namespace)["status"].get("succeeded")
    kube_alone.wait_for(
        lambda: kube_alone.get("jobs", "second", namespace)["status"].get("succeeded"), 240, "no second"
    )


def test_kueue_leaves_a_namespace_alone_that_does_not_ask_for_it(kube, namespace, other_namespace):
    kube.queue_jobs(other_namespace)
    unknown = queued_job("any")
    unknown["spec"]["suspend"] = False
    kube.apply(unknown, namespace=namespace)
    kube.watch(
        "jobs", namespace, lambda found: found[0]["status"].get("succeeded"), 240, "it is held", name="any"
    )


def suspended(cluster, namespace, job):
    return cluster.get("jobs", job, namespace)["spec"]["suspend"]
