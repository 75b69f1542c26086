"""What workers get for InfiniBand, RoCE and EFA; the examples of the docs."""

import pytest

from clustertrain.errors import JobError
from clustertrain.job.file import parse_job
from clustertrain.launchers.kubernetes.render.manifests import manifests
from launchers.kubernetes.fabric import examples
from launchers.kubernetes.pod_job import group_of, of_kind, pods

RESOURCES = {"workers": 16, "nodes": 2, "gpus_per_worker": 1, "cpus_per_worker": 8}
NETWORK = {"host_network": True, "node_networks": ["10.0.0.0/16"]}


@pytest.fixture
def make(make_job):
    return lambda **section: make_job(resources=RESOURCES, kubernetes=section)


def test_devices_and_huge_pages_are_of_the_workers_only(make):
    given = {"rdma/ib": 8, "hugepages-2Mi": "5120Mi"}
    job = make(worker_resources=given, gpu_resource="amd.com/gpu")
    spec = group_of(job)["template"]["spec"]
    more = {"amd.com/gpu": "8", "rdma/ib": "8", "hugepages-2Mi": "5120Mi"}
    amounts = spec["containers"][0]["resources"]
    assert amounts["limits"] == {"cpu": "64", "memory": "129Gi", **more}
    assert amounts["requests"] == {**amounts["limits"], "ephemeral-storage": "1Gi"}
    (code,) = spec["initContainers"]
    assert code["resources"]["limits"].keys() == {"cpu", "memory"}
    assert group_of(job)["rayStartParams"]["num-gpus"] == "8"
    (head,) = pods(job)["head"]["spec"]["containers"]
    assert head["resources"]["limits"].keys() == {"cpu", "memory"}


def test_capabilities_are_of_the_workers_container_only(make):
    spec = pods(make(worker_capabilities=["IPC_LOCK"]))["worker"]["spec"]
    assert spec["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert spec["initContainers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_workers_in_the_network_of_the_node(make):
    job = make(**NETWORK)
    group, spec = group_of(job), group_of(job)["template"]["spec"]
    assert (spec["hostNetwork"], spec["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    parameters, (worker,) = group["rayStartParams"], spec["containers"]
    ports = {each["name"]: str(each["containerPort"]) for each in worker["ports"]}
    agent = parameters["dashboard-agent-listen-port"]
    assert ports == {"metrics": parameters["metrics-export-port"], "agent": agent}
    for probe in ("startupProbe", "readinessProbe"):
        assert str(worker[probe]["httpGet"]["port"]) == agent
    low, high = int(parameters["min-worker-port"]), int(parameters["max-worker-port"])
    assert max(map(int, ports.values())) < low < high < 30000
    for role in ("head", "submitter", "reader"):
        assert "hostNetwork" not in pods(job)[role]["spec"]


def test_the_policy_admits_the_addresses_of_the_nodes(make):
    (policy,) = of_kind(manifests(make(**NETWORK)), "NetworkPolicy")
    head, block = policy["spec"], {"ipBlock": {"cidr": "10.0.0.0/16"}}
    assert block in head["ingress"][0]["from"] and block in head["egress"][0]["to"]


def test_policies_that_would_refuse_the_workers_are_refused(make):
    with pytest.raises(
        JobError, match=r"kubernetes.host_network: true .*\n.*kubernetes.node_networks"
    ) as caught:
        manifests(make(host_network=True))
    assert caught.value.at == ("kubernetes", "host_network")
    job = make(host_network=True, network_policies=False)
    assert group_of(job)["template"]["spec"]["hostNetwork"] is True


@pytest.mark.parametrize("text", examples(), ids=lambda text: text.splitlines()[0])
def test_the_examples_of_the_docs_are_rendered_and_not_refused(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    assert manifests(parse_job(text, "job.yaml"))[-1]["kind"] == "RayJob"


def test_the_docs_have_examples():
    assert len(examples()) == 2
