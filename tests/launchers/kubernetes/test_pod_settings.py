"""Keys for the pods of a run: amounts, placement, users, labels, outgoing traffic."""

import pytest

from clustertrain.errors import JobError
from clustertrain.job.file import dump_job
from clustertrain.launchers.kubernetes.render.manifests import manifests
from clustertrain.launchers.kubernetes.render.paths import PodJob
from launchers.kubernetes.pod_job import containers, of_kind, pods


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


def test_the_defaults_of_the_amounts(make):
    def amounts(resources, **section):
        return {
            role: pod["spec"]["containers"][0]["resources"]
            for role, pod in pods(make(resources, **section)).items()
        }

    found = amounts({"workers": 2, "nodes": 1})
    assert found["worker"]["limits"] == {"cpu": "2", "memory": "9Gi"}
    assert found["head"]["requests"] == {"cpu": "1", "memory": "4Gi", "ephemeral-storage": "1Gi"}
    assert found["head"]["limits"] == {"cpu": "4", "memory": "4Gi"}
    assert found["submitter"] == found["reader"]
    assert found["submitter"]["limits"] == {"cpu": "1", "memory": "512Mi"}
    on_gpus = amounts({"workers": 4, "nodes": 2, "gpus_per_worker": 1}, ephemeral_storage="5Gi")
    assert on_gpus["worker"]["limits"]["memory"] == "33Gi"
    assert on_gpus["worker"]["limits"]["ephemeral-storage"] == "5Gi"
    assert on_gpus["reader"]["limits"]["ephemeral-storage"] == "1Gi"
    assert on_gpus["reader"]["requests"]["ephemeral-storage"] == "1Gi"
    chosen = amounts(None, head={"cpus": 2, "cpu_limit": 2}, submitter={"cpus": 0.2, "memory": "1Gi"})
    assert chosen["head"]["limits"]["cpu"] == chosen["head"]["requests"]["cpu"] == "2"
    assert chosen["submitter"]["requests"] == {"cpu": "200m", "memory": "1Gi", "ephemeral-storage": "1Gi"}


# ------------------------------------------------------------------------------------------ pods and flows


def test_labels_annotations_and_placement_are_on_every_pod(make):
    affinity = {"podAntiAffinity": {}}
    job = make(
        pod_labels={"team": "a"},
        pod_annotations={"sidecar.istio.io/inject": "false"},
        affinity=affinity,
        runtime_class="nvidia",
        scheduler_name="volcano",
    )
    for role, pod in pods(job).items():
        labels = pod["metadata"]["labels"]
        assert (labels["team"], labels["clustertrain.io/role"]) == ("a", role)
        job_file = pod["metadata"]["annotations"].pop("clustertrain.io/job", "")
        assert pod["metadata"]["annotations"] == {"sidecar.istio.io/inject": "false"}
        assert job_file == (dump_job(PodJob.of(job).job, defaults=False) if role == "reader" else "")
        spec = pod["spec"]
        assert (spec["affinity"], spec["runtimeClassName"], spec["schedulerName"]) == (
            affinity,
            "nvidia",
            "volcano",
        )


def test_the_labels_and_annotations_of_a_site_are_on_every_object_and_every_pod(make):
    """The kit's own stay, and those of pods alone come before them."""
    job = make(
        labels={"owner": "a", "team": "all"},
        annotations={"example.org/cost": "1: 2"},
        pod_labels={"team": "pods"},
        volumes=[{"mount": "/mnt/runs", "claim": "runs", "size": "1Gi"}],
    )
    objects = manifests(job)
    kinds = {each["kind"] for each in objects}
    assert kinds == {
        *("ConfigMap", "NetworkPolicy", "PersistentVolumeClaim", "RayJob"),
    }
    for each in objects:
        metadata = each["metadata"]
        assert metadata["labels"].items() >= {"owner": "a", "team": "all"}.items(), each["kind"]
        assert metadata["labels"]["app.kubernetes.io/name"] == "clustertrain"
        assert metadata["annotations"]["example.org/cost"] == "1: 2", each["kind"]
    for role, pod in pods(job).items():
        assert pod["metadata"]["labels"].items() >= {"owner": "a", "team": "pods"}.items(), role
        assert pod["metadata"]["annotations"]["example.org/cost"] == "1: 2", role


def test_annotations_of_the_workers_go_with_those_of_the_topology_and_of_all_pods(make):
    networks = {"k8s.v1.cni.cncf.io/networks": "roce-a, roce-b"}
    queue = {"queue": {"name": "q"}, "topology": {"required": "rack"}, "pod_annotations": {"a": "b"}}
    found = pods(make(worker_annotations=networks, **queue))
    rack = {"kueue.x-k8s.io/podset-required-topology": "rack"}
    assert found["worker"]["metadata"]["annotations"] == {"a": "b", **networks, **rack}
    assert found["head"]["metadata"]["annotations"] == {"a": "b"}


@pytest.mark.parametrize(("user", "not_root"), [(7, True), (0, None)])
def test_the_user_is_the_jobs(make, user, not_root):
    for pod in pods(make(run_as={"user": user, "group": 0, "fs_group": 8})).values():
        context = pod["spec"]["securityContext"]
        assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (user, 0, 8)
        assert context.get("runAsNonRoot") is not_root


def test_the_user_is_the_clusters(make):
    for pod in pods(make(run_as={"by": "cluster"})).values():
        assert pod["spec"]["securityContext"] == {
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        }


def test_one_policy_closes_all_pods_but_for_these_flows(make):
    egress = [{"ports": [3128], "cidr": "10.1.2.3/32"}, {"ports": [53]}]
    (policy,) = of_kind(manifests(make(egress=egress)), "NetworkPolicy")
    spec = policy["spec"]
    assert spec["podSelector"]["matchLabels"] == {"clustertrain.io/run": "run-1"}
    assert spec["policyTypes"] == ["Ingress", "Egress"]

    def role(name):
        return {
            "podSelector": {"matchLabels": {"clustertrain.io/run": "run-1", "clustertrain.io/role": name}}
        }

    def anywhere(**labels):
        labels = {f"app.kubernetes.io/{key}": value for key, value in labels.items()}
        return {"namespaceSelector": {}, "podSelector": {"matchLabels": labels}}

    ray = [role("head"), role("worker")]
    assert spec["ingress"] == [
        {"from": ray},
        {
            "from": [anywhere(component="kuberay-operator"), role("submitter")],
            "ports": [{"protocol": "TCP", "port": 8265}],
        },
        {"from": [anywhere(name="prometheus")], "ports": [{"protocol": "TCP", "port": 8080}]},
    ]
    to_ray, dns, proxy, anywhere_53 = spec["egress"]
    assert to_ray == {"to": ray}
    values = ["kube-system", "openshift-dns"]
    label = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": values}
    system = {"namespaceSelector": {"matchExpressions": [label]}}
    assert dns["to"] == [system, {"ipBlock": {"cidr": "169.254.0.0/16"}}]
    assert {(each["protocol"], each["port"]) for each in dns["ports"]} == {
        (protocol, port) for protocol in ("UDP", "TCP") for port in (53, 5353)
    }
    assert proxy == {
        "to": [{"ipBlock": {"cidr": "10.1.2.3/32"}}],
        "ports": [{"protocol": "TCP", "port": 3128}],
    }
    assert anywhere_53 == {"ports": [{"protocol": protocol, "port": 53} for protocol in ("TCP", "UDP")]}


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"pod_labels": {"clustertrain.io/run": "x"}}, "clustertrain or KubeRay sets this one"),
        ({"pod_labels": {"app.kubernetes.io/name": "x"}}, "clustertrain or KubeRay sets this one"),
        ({"labels": {"app.kubernetes.io/created-by": "x"}}, "clustertrain or KubeRay sets this one"),
        ({"labels": {"ray.io/cluster": "x"}}, "clustertrain or KubeRay sets this one"),
        ({"annotations": {"clustertrain.io/storage": "x"}}, "clustertrain or KubeRay sets this one"),
        ({"pod_annotations": {"ray.io/node-type": "x"}}, "clustertrain or KubeRay sets this one"),
        ({"egress": [{"ports": []}]}, "egress.0.ports: a list is not accepted\nmust have at least 1 item"),
        ({"run_as": {"user": -1}}, "greater than or equal to 0"),
    ],
)
def test_wrong_values_are_refused(make, section, message):
    with pytest.raises(JobError) as caught:
        make(**section)
    assert message in str(caught.value)
