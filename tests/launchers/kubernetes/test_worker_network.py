"""What workers get for InfiniBand, RoCE and EFA; the examples of the docs."""

import pytest
import yaml

from clustertrain.errors import JobError
from clustertrain.job.file import parse_job
from clustertrain.launchers.kubernetes.render.manifests import manifests
from clustertrain.launchers.kubernetes.render.rayjob_rules import check_rayjob
from launchers.kubernetes.fabric import examples

JOB = {
    "name": "fabric",
    "function": "train:train",
    "image": "registry.example.org/team/train:1.0",
    "resources": {"workers": 16, "nodes": 2, "gpus_per_worker": 1, "cpus_per_worker": 8},
}
NETWORK = {"host_network": True, "node_networks": ["10.0.0.0/16"]}


@pytest.fixture
def make(tmp_path, monkeypatch):
    (tmp_path / "code").mkdir()
    monkeypatch.chdir(tmp_path / "code")
    return lambda **section: parse_job(yaml.safe_dump({**JOB, "kubernetes": section}), "job.yaml")


def rayjob_of(job):
    return manifests(job)[-1]["spec"]


def group_of(job):
    return rayjob_of(job)["rayClusterSpec"]["workerGroupSpecs"][0]


def policy_of(job, role):
    return next((o["spec"] for o in manifests(job) if o["metadata"]["name"] == f"fabric-{role}"), None)


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
    head = rayjob_of(job)["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    assert head["resources"]["limits"].keys() == {"cpu", "memory"}


def test_annotations_are_of_the_workers_only(make):
    networks = {"k8s.v1.cni.cncf.io/networks": "roce-a, roce-b"}
    job = make(worker_annotations=networks, pod_annotations={"team": "a"})
    assert group_of(job)["template"]["metadata"]["annotations"] == {"team": "a", **networks}
    cluster = rayjob_of(job)["rayClusterSpec"]
    assert cluster["headGroupSpec"]["template"]["metadata"]["annotations"] == {"team": "a"}


def test_capabilities_are_of_the_workers_container_only(make):
    job = make(worker_capabilities=["IPC_LOCK"])
    spec = group_of(job)["template"]["spec"]
    assert spec["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert spec["initContainers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_root_is_not_said_to_be_none(make):
    contexts = [
        group_of(make(run_as={"user": user}))["template"]["spec"]["securityContext"] for user in (0, 1000)
    ]
    assert [(each["runAsUser"], each.get("runAsNonRoot")) for each in contexts] == [(0, None), (1000, True)]


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
    cluster = rayjob_of(job)
    for other in (cluster["rayClusterSpec"]["headGroupSpec"]["template"], cluster["submitterPodTemplate"]):
        assert "hostNetwork" not in other["spec"]


def test_the_policies_admit_the_addresses_of_the_nodes(make):
    job = make(**NETWORK)
    head, block = policy_of(job, "head"), {"ipBlock": {"cidr": "10.0.0.0/16"}}
    assert block in head["ingress"][0]["from"] and block in head["egress"][0]["to"]
    assert policy_of(job, "worker") is None
    assert policy_of(make(), "worker") is not None


def test_policies_that_would_refuse_the_workers_are_refused(make):
    with pytest.raises(
        JobError, match=r"kubernetes.host_network: true .*\n.*kubernetes.node_networks"
    ) as caught:
        manifests(make(host_network=True))
    assert caught.value.at == ("kubernetes", "host_network")
    job = make(host_network=True, network_policies=False)
    assert group_of(job)["template"]["spec"]["hostNetwork"] is True


@pytest.mark.parametrize(("user", "lines"), [(1000, 1), (0, 0)])
def test_a_capability_without_effect_is_advised_on(make, user, lines):
    objects = manifests(make(worker_capabilities=["IPC_LOCK"], run_as={"user": user}))
    found = check_rayjob(objects[-1])
    about = [line for line in found if "IPC_LOCK" in line]
    assert len(about) == lines
    assert all("for user 1000" in line and "limit of locked memory" in line for line in about)


@pytest.mark.parametrize("text", examples(), ids=lambda text: text.splitlines()[0])
def test_the_examples_of_the_docs_are_rendered_and_not_refused(make, text):
    make()  # in a folder with code
    check_rayjob(manifests(parse_job(text, "job.yaml"))[-1])


def test_the_docs_have_examples():
    assert len(examples()) == 2
