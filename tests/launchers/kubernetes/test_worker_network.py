"""What workers get for InfiniBand, RoCE and EFA; what each key violates; the examples of the docs."""

import re

import pytest
import yaml

from clustertrain.errors import JobError
from clustertrain.job.file import parse_job
from clustertrain.launchers.kubernetes.render.manifests import manifests
from clustertrain.launchers.kubernetes.rules.check import advice, check
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
    more = {"amd.com/gpu": "8", "rdma/ib": "8", "hugepages-2Mi": "5Gi"}
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


# What each key violates of Pod Security: by `baseline`, and by `restricted`.
OPENS = [
    ({}, [], []),
    ({"worker_resources": {"rdma/ib": 8, "hugepages-1Gi": "2Gi"}}, [], []),
    ({"worker_annotations": {"k8s.v1.cni.cncf.io/networks": "a"}, "runtime_class": "nvidia"}, [], []),
    ({"priority_class": "high", "gpu_resource": "amd.com/gpu"}, [], []),
    (NETWORK, ["hostNetwork"], ["hostNetwork"]),
    ({"worker_capabilities": ["IPC_LOCK"]}, ["capabilities.add[0]"], ["capabilities.add[0]"]),
    ({"run_as": {"user": 0}}, [], ["runAsUser"]),
]


@pytest.mark.parametrize(("section", "baseline", "restricted"), OPENS)
def test_what_each_key_opens(make, section, baseline, restricted):
    objects = manifests(make(**section))

    def violated(level):
        found = check(objects, enforced=lambda namespace: level, version="")
        places = {each.where for each in found if each.by == "pod-security"}
        return {re.sub(r".*?(hostNetwork|capabilities\S+|runAsUser)$", r"\1", place) for place in places}

    assert violated("privileged") == set()
    assert violated("baseline") == set(baseline)
    # A user that may be root is also missing as runAsNonRoot.
    assert {each for each in violated("restricted") if "runAsNonRoot" not in each} == set(restricted)


@pytest.mark.parametrize(("user", "lines"), [(1000, 1), (0, 0)])
def test_a_capability_without_effect_is_advised_on(make, user, lines):
    objects = manifests(make(worker_capabilities=["IPC_LOCK"], run_as={"user": user}))
    found = advice(check(objects, enforced=lambda namespace: "privileged", version=""))
    about = [line for line in found if "IPC_LOCK" in line]
    assert len(about) == lines
    assert all("for user 1000" in line and "limit of locked memory" in line for line in about)


@pytest.mark.parametrize("text", examples(), ids=lambda text: text.splitlines()[0])
def test_the_examples_of_the_docs_are_rendered_and_not_refused(make, text):
    make()  # in a folder with code
    objects = manifests(parse_job(text, "job.yaml"))
    found = check(objects, enforced=lambda namespace: "privileged", version="1.34")
    assert [each for each in found if each.by != "nobody"] == []


def test_the_docs_have_examples():
    assert len(examples()) == 2
