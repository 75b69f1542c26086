"""Keys for the pods of a run: amounts, devices, placement, users, labels, traffic, the workers' network."""

import pytest
from pydantic import ValidationError

from clustertrain.errors import JobError
from clustertrain.job.file import dump_job, parse_job
from clustertrain.launchers.gpu_slices import check_slices, is_slice_of_gpu
from clustertrain.launchers.kubernetes.render.manifests import manifests
from clustertrain.launchers.kubernetes.render.paths import PodJob
from clustertrain.launchers.kubernetes.section import Kubernetes
from launchers.kubernetes.rendered_jobs import containers, group_of, of_kind, pods
from launchers.kubernetes.sample_manifests import gpu_node_examples


@pytest.fixture
def make(make_job):
    return lambda resources=None, **section: make_job(
        resources=resources or {"workers": 1}, kubernetes=section
    )


# ------------------------------------------------------------------------------------------------- amounts


KUEUE = {"queue": {"name": "q"}}  # it never admits a request that its queue does not count


@pytest.mark.parametrize(
    ("section", "on_disk"),
    [
        ({}, {"requests"}),
        ({"ephemeral_storage": "20Gi"}, {"requests", "limits"}),
        (KUEUE, set()),
        ({**KUEUE, "ephemeral_storage": "20Gi"}, {"requests", "limits"}),
        ({"queue": {"kind": "volcano", "name": "q"}}, {"requests"}),
    ],
)
def test_every_container_has_requests_and_limits(make, section, on_disk):
    for role, pod in pods(make({"workers": 1, "gpus_per_worker": 1}, **section)).items():
        for container in containers(pod):
            names = {"cpu", "memory", *({"nvidia.com/gpu"} if container["name"] == "ray-worker" else ())}
            for kind in ("requests", "limits"):
                own = {"ephemeral-storage"} if kind in on_disk else set()
                assert set(container["resources"][kind]) == names | own, (role, container["name"], kind)


@pytest.mark.parametrize(
    ("section", "most", "of_small"),
    [
        ({}, "100Gi", "1Gi"),
        ({"ephemeral_storage": "20Gi"}, "20Gi", "1Gi"),
        ({"ephemeral_storage": "500Mi"}, *2 * ["500Mi"]),
    ],
)
def test_every_empty_folder_has_a_limit(make, section, most, of_small):
    for role, pod in pods(make({"workers": 1, "memory_per_worker": "7Gi"}, **section)).items():
        found = {v["name"]: v["emptyDir"]["sizeLimit"] for v in pod["spec"]["volumes"] if "emptyDir" in v}
        memory = {"head": "4Gi", "worker": "8Gi"}.get(role)
        large = {"tmp": most, "code": most, "shm": memory}
        assert found == (large if memory else {"tmp": of_small}), role


def test_the_amounts_of_each_role_are_chosen(make):
    """Their defaults are in k8s/base/rayjob-digits.yaml."""

    def amounts(**section):
        return {
            role: pod["spec"]["containers"][0]["resources"] for role, pod in pods(make(**section)).items()
        }

    chosen = amounts(
        head={"cpus": 2, "cpu_limit": 2},
        submitter={"cpus": 0.2, "memory": "1Gi"},
        ephemeral_storage="5Gi",
    )
    assert chosen["head"]["limits"]["cpu"] == chosen["head"]["requests"]["cpu"] == "2"
    assert chosen["submitter"]["requests"] == {"cpu": "200m", "memory": "1Gi", "ephemeral-storage": "1Gi"}
    assert chosen["worker"]["limits"]["ephemeral-storage"] == "5Gi"


# ------------------------------------------------------------------------------------------ pods and flows


def test_placement_is_on_every_pod_and_labels_and_annotations_on_every_object(make):
    """The kit's own stay, and those of pods alone come before those of the site."""
    affinity, injected = {"podAntiAffinity": {}}, {"sidecar.istio.io/inject": "false"}
    job = make(
        labels={"owner": "a", "team": "all"},
        annotations={"example.org/cost": "1: 2"},
        pod_labels={"team": "pods"},
        pod_annotations=injected,
        affinity=affinity,
        runtime_class="nvidia",
        scheduler_name="volcano",
        volumes=[{"mount": "/mnt/runs", "claim": "runs", "size": "1Gi"}],
    )
    objects = manifests(job)
    kinds = {"ConfigMap", "NetworkPolicy", "PersistentVolumeClaim", "RayJob"}
    assert {each["kind"] for each in objects} == kinds
    for metadata in (each["metadata"] for each in objects):
        assert metadata["labels"].items() >= {"owner": "a", "team": "all"}.items(), metadata
        assert metadata["labels"]["app.kubernetes.io/name"] == "clustertrain"
        assert metadata["annotations"]["example.org/cost"] == "1: 2", metadata
    for role, pod in pods(job).items():
        metadata, spec = pod["metadata"], pod["spec"]
        own = {"owner": "a", "team": "pods", "clustertrain.io/role": role}
        assert metadata["labels"].items() >= own.items(), role
        job_file = metadata["annotations"].pop("clustertrain.io/job", "")
        assert metadata["annotations"] == {**injected, "example.org/cost": "1: 2"}, role
        assert job_file == (dump_job(PodJob.of(job).job, defaults=False) if role == "reader" else "")
        placement = (spec["affinity"], spec["runtimeClassName"], spec["schedulerName"])
        assert placement == (affinity, "nvidia", "volcano")


def test_annotations_of_the_workers_go_with_those_of_the_topology_and_of_all_pods(make):
    networks = {"k8s.v1.cni.cncf.io/networks": "roce-a, roce-b"}
    queue = {"queue": {"name": "q"}, "topology": {"required": "rack"}, "pod_annotations": {"a": "b"}}
    found = pods(make(worker_annotations=networks, **queue))
    rack = {"kueue.x-k8s.io/podset-required-topology": "rack"}
    assert found["worker"]["metadata"]["annotations"] == {"a": "b", **networks, **rack}
    assert found["head"]["metadata"]["annotations"] == {"a": "b"}


PROFILE = {"seccompProfile": {"type": "RuntimeDefault"}}
GROUPS = {"runAsGroup": 0, "fsGroup": 8, "fsGroupChangePolicy": "OnRootMismatch"}


@pytest.mark.parametrize(
    ("run_as", "context"),
    [
        ({"user": 7, "group": 0, "fs_group": 8}, {"runAsNonRoot": True, "runAsUser": 7, **GROUPS}),
        ({"user": 0, "group": 0, "fs_group": 8}, {"runAsUser": 0, **GROUPS}),
        ({"by": "cluster"}, {"runAsNonRoot": True}),
    ],
    ids=["job", "root", "cluster"],
)
def test_the_user_is_that_of_the_job_or_the_clusters(make, run_as, context):
    for pod in pods(make(run_as=run_as)).values():
        assert pod["spec"]["securityContext"] == {**context, **PROFILE}


def test_traffic_of_the_job_is_added_to_the_flows_of_the_policy(make):
    """The others are in k8s/base/rayjob-digits.yaml."""
    egress = [{"ports": [3128], "cidr": "10.1.2.3/32"}, {"ports": [53]}]
    (policy,) = of_kind(manifests(make(egress=egress)), "NetworkPolicy")
    (without,) = of_kind(manifests(make()), "NetworkPolicy")
    assert policy["spec"]["podSelector"]["matchLabels"] == {"clustertrain.io/run": "run-1"}
    assert policy["spec"]["ingress"] == without["spec"]["ingress"]
    *of_the_kit, proxy, anywhere_53 = policy["spec"]["egress"]
    assert of_the_kit == without["spec"]["egress"]
    assert proxy == {
        "to": [{"ipBlock": {"cidr": "10.1.2.3/32"}}],
        "ports": [{"protocol": "TCP", "port": 3128}],
    }
    assert anywhere_53 == {"ports": [{"protocol": protocol, "port": 53} for protocol in ("TCP", "UDP")]}


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"pod_labels": {"clustertrain.io/run": "x"}}, "clustertrain or KubeRay sets this one"),
        ({"labels": {"ray.io/cluster": "x"}}, "clustertrain or KubeRay sets this one"),
        ({"pod_annotations": {"ray.io/node-type": "x"}}, "clustertrain or KubeRay sets this one"),
        ({"egress": [{"ports": []}]}, "egress.0.ports: a list is not accepted\nmust have at least 1 item"),
    ],
)
def test_wrong_values_are_refused(make, section, message):
    with pytest.raises(JobError) as caught:
        make(**section)
    assert message in str(caught.value)


RESOURCES = {"workers": 16, "nodes": 2, "gpus_per_worker": 1, "cpus_per_worker": 8}
NETWORK = {"host_network": True, "node_networks": ["10.0.0.0/16"]}


@pytest.fixture
def make_on_nodes(make_job):
    return lambda **section: make_job(resources=RESOURCES, kubernetes=section)


def test_devices_and_huge_pages_are_of_the_workers_only(make_on_nodes):
    given = {"rdma/ib": 8, "hugepages-2Mi": "5120Mi"}
    job = make_on_nodes(worker_resources=given, gpu_resource="amd.com/gpu")
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


def test_capabilities_are_of_the_workers_container_only(make_on_nodes):
    spec = pods(make_on_nodes(worker_capabilities=["IPC_LOCK"]))["worker"]["spec"]
    assert spec["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert spec["initContainers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_workers_in_the_network_of_the_node(make_on_nodes):
    job = make_on_nodes(**NETWORK)
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


def test_the_policy_admits_the_addresses_of_the_nodes(make_on_nodes):
    (policy,) = of_kind(manifests(make_on_nodes(**NETWORK)), "NetworkPolicy")
    head, block = policy["spec"], {"ipBlock": {"cidr": "10.0.0.0/16"}}
    assert block in head["ingress"][0]["from"] and block in head["egress"][0]["to"]


def test_policies_that_would_refuse_the_workers_are_refused(make_on_nodes):
    with pytest.raises(
        JobError, match=r"kubernetes.host_network: true .*\n.*kubernetes.node_networks"
    ) as caught:
        manifests(make_on_nodes(host_network=True))
    assert caught.value.at == ("kubernetes", "host_network")
    job = make_on_nodes(host_network=True, network_policies=False)
    assert group_of(job)["template"]["spec"]["hostNetwork"] is True


@pytest.mark.parametrize("text", gpu_node_examples(), ids=lambda text: text.splitlines()[0])
def test_the_examples_of_the_docs_are_rendered_and_not_refused(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    assert manifests(parse_job(text, "job.yaml"))[-1]["kind"] == "RayJob"


KEY = ("kubernetes", "gpu_resource")


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("cpu", "must be a resource without a key of its own\nset resources.cpus_per_worker"),
        ("ephemeral-storage", "set kubernetes.ephemeral_storage"),
        ("nvidia.com/gpu", "set resources.gpus_per_worker, and kubernetes.gpu_resource: nvidia.com/gpu"),
        ("nvidia.com/mig-1g.10gb", "kubernetes.gpu_resource: nvidia.com/mig-1g.10gb"),
        ("efa", "must be DOMAIN/NAME"),
    ],
)
def test_resources_that_are_no_devices(name, rule):
    with pytest.raises(ValidationError) as caught:
        Kubernetes.model_validate({"worker_resources": {name: 4}})
    assert rule in str(caught.value)


@pytest.mark.parametrize(
    "name", ["nvidia.com/mig-1g.10gb", "1g.10gb", "a100_3g.20gb", "nvidia.com/mig-1g.10gb.me"]
)
def test_slices_are_recognized(name):
    assert is_slice_of_gpu(name)
    check_slices(KEY, name, workers=1, gpus_per_worker=1, together="pod")
    for workers, gpus in ((2, 1), (1, 2)):
        with pytest.raises(JobError, match="2 slices in one pod") as caught:
            check_slices(KEY, name, workers, gpus, "pod")
        assert caught.value.at == KEY


@pytest.mark.parametrize("name", ["nvidia.com/gpu", "a100", "h100_80gb", "amd.com/gpu", ""])
def test_whole_gpus_are_no_slices(name):
    assert not is_slice_of_gpu(name)
    check_slices(KEY, name, workers=8, gpus_per_worker=2, together="pod")
