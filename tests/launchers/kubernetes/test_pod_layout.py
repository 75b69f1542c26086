"""On how many nodes workers with GPUs run where the job does not say: by the GPUs of the cluster's nodes."""

import json
from decimal import Decimal

import pytest
import yaml

from clustertrain.errors import JobError
from clustertrain.launchers.kubernetes.cluster.kubectl import Forbidden, Kubectl
from clustertrain.launchers.kubernetes.cluster.node_room import pods_held, quantity
from clustertrain.launchers.kubernetes.cluster.pod_layout import divided, fitted, with_nodes
from clustertrain.launchers.kubernetes.render.manifests import manifests
from clustertrain.launchers.shell import Unanswered
from launchers.kubernetes.pod_job import group_of, make_job

__all__ = ["make_job"]


@pytest.fixture
def make(make_job):
    def make_with(resources, kubernetes=""):
        """The sections as a job file has them in one line, without the braces."""
        resources = f"{{cpus_per_worker: 4, memory_per_worker: 8Gi, {resources}}}"
        sections = {"resources": resources, "kubernetes": f"{{{kubernetes}}}"}
        return make_job(**{key: yaml.safe_load(text) for key, text in sections.items()})

    return make_with


def node(gpus, cpu="64", taints=(), resource="nvidia.com/gpu"):
    amounts = {"cpu": cpu, "memory": "512Gi", "ephemeral-storage": "90Gi", "pods": "110"}
    return {
        "metadata": {"name": "n", "labels": {}},
        "spec": {"taints": list(taints)},
        "status": {"allocatable": {**amounts, **({resource: gpus} if gpus else {})}},
    }


def pod_of(job):
    return group_of(job)["template"]["spec"]


EIGHT, FOUR, ONE, NONE = node("8"), node("4"), node("1"), node(None)
TAINTED = node("8", taints=[{"key": "gpu", "effect": "NoSchedule"}])
SHAPES = [
    ("workers: 8, gpus_per_worker: 1", [EIGHT, NONE], 1),
    ("workers: 8, gpus_per_worker: 1", [FOUR, FOUR], 2),
    ("workers: 8, gpus_per_worker: 1", [EIGHT, FOUR], 1),
    ("workers: 16, gpus_per_worker: 1", [EIGHT, EIGHT], 2),
    ("workers: 12, gpus_per_worker: 1", [EIGHT, EIGHT], 2),
    ("workers: 8, gpus_per_worker: 1", [TAINTED, FOUR, FOUR], 2),
    ("workers: 2, gpus_per_worker: 1", [ONE, ONE], 2),
    ("workers: 4, gpus_per_worker: 2", [FOUR, FOUR], 2),
    ("workers: [2, 8], gpus_per_worker: 1", [EIGHT], (1, 4)),
    ("workers: 8, gpus_per_worker: 1", [node("8", cpu="20"), node("8", cpu="20")], 2),
]


@pytest.mark.parametrize(("resources", "nodes", "expected"), SHAPES)
def test_as_few_pods_as_the_nodes_allow(make, resources, nodes, expected):
    job, (note,) = divided(make(resources), nodes)
    assert job.resources.nodes == expected
    shown = [*expected] if isinstance(expected, tuple) else expected
    assert f"taken as {shown}: {job.resources.workers_per_node} worker" in note
    assert pods_held(pod_of(job), nodes) >= job.resources.min_nodes


def test_the_note_has_the_arithmetic(make):
    _, notes = divided(make("workers: 8, gpus_per_worker: 1"), [EIGHT])
    assert notes == [
        "resources.nodes is taken as 1: 8 workers × 1 GPU = 8 GPUs in each pod, and the largest node "
        "has 8 nvidia.com/gpu"
    ]


def test_patches_and_other_vendors_count(make):
    job = make("workers: 8, gpus_per_worker: 1", "gpu_resource: amd.com/gpu")
    assert divided(job, [EIGHT, node("8", resource="amd.com/gpu")])[0].resources.nodes == 1
    tolerated = "tolerations: [{key: gpu, operator: Exists}]"
    assert divided(make("workers: 8, gpus_per_worker: 1", tolerated), [TAINTED])[0].resources.nodes == 1


@pytest.mark.parametrize(
    "resources",
    [
        "workers: 8",
        "workers: 1, gpus_per_worker: 1",
        "workers: 8, nodes: 8, gpus_per_worker: 1",
        "nodes: 2, gpus_per_node: 4",
    ],
)
def test_other_jobs_stay_as_they_are_and_read_no_cluster(make, resources):
    job = make(resources)
    assert with_nodes(job, None) == (job, [])
    manifests(job)


def test_slices_of_gpus_have_a_pod_each(make):
    job = make("workers: 2, gpus_per_worker: 1", "gpu_resource: nvidia.com/mig-1g.10gb")
    assert with_nodes(job, None) == (job, [])
    group = group_of(job)
    assert group["replicas"] == 2
    limits = pod_of(job)["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/mig-1g.10gb"] == group["rayStartParams"]["num-gpus"] == "1"


def test_several_ranks_of_a_pod_on_slices_are_refused(make):
    job = make("workers: 2, nodes: 1, gpus_per_worker: 1", "gpu_resource: nvidia.com/mig-1g.10gb")
    with pytest.raises(JobError) as caught:
        manifests(job)
    first, _, remedy = str(caught.value).splitlines()
    assert first.startswith(
        "kubernetes.gpu_resource: nvidia.com/mig-1g.10gb is a slice of a GPU (MIG), and 2"
    )
    assert "2 workers × 1 per worker = 2 slices in one pod" in first and "workers = nodes" in remedy


def test_rendering_refuses_what_it_cannot_know(make):
    with pytest.raises(JobError) as caught:
        manifests(make("workers: 8, gpus_per_worker: 1"))
    first, _, remedy = str(caught.value).splitlines()
    assert first == (
        "resources.nodes is missing, for 8 workers × 1 GPU = 8 GPUs: rendering reads no cluster."
    )
    assert remedy == (
        "Set resources.nodes: 1 on nodes of 8 GPUs, 2 on nodes of 4 GPUs, 4 on nodes of 2 GPUs, "
        "8 on nodes of 1 GPU."
    )


def test_workers_that_no_layout_divides_are_refused(make):
    with pytest.raises(JobError, match=r"the largest node has 4 nvidia.com/gpu, and no larger number"):
        divided(make("workers: 7, gpus_per_worker: 1"), [FOUR, FOUR])


def test_workers_that_fill_a_node_before_its_gpus_are_refused_with_that_as_a_reason(make):
    with pytest.raises(
        JobError, match=r"the largest node has 8 nvidia.com/gpu, and no .* and fits \(GPUs, CPUs"
    ):
        divided(make("workers: 4, gpus_per_worker: 1"), [node("8", cpu="7")] * 4)


def test_nodes_that_cannot_hold_a_worker(make):
    job = make("workers: 8, gpus_per_worker: 1")
    with pytest.raises(JobError, match=r"\(the largest has 0 nvidia.com/gpu\), and no others are known"):
        divided(job, [NONE])
    with pytest.raises(JobError, match=r"resources.nodes is missing.*\(the largest has 8 nvidia.com/gpu\)"):
        divided(make("workers: 2, gpus_per_worker: 9"), [EIGHT])
    with pytest.raises(JobError, match=r"resources.nodes is missing"):
        divided(job, [])


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Forbidden("ann", "list nodes"), "cannot be read (ann may not list nodes: no role of the cluster "),
        (Unanswered("kubectl has no cluster: x\nSet it."), "cannot be read (kubectl has no cluster: x)"),
    ],
)
def test_nodes_that_cannot_be_read(make, monkeypatch, error, reason):
    def refuse(*arguments, **options):
        raise error

    monkeypatch.setattr(Kubectl, "__call__", refuse)
    with pytest.raises(JobError) as caught:
        with_nodes(make("workers: 8, gpus_per_worker: 1"), Kubectl())
    assert reason in str(caught.value) and "resources.nodes" in str(caught.value)


def test_they_are_read_by_kubectl(make, monkeypatch):
    class Done:
        stdout = json.dumps({"items": [EIGHT]})

    monkeypatch.setattr(Kubectl, "__call__", lambda self, *arguments, **options: Done())
    assert with_nodes(make("workers: 8, gpus_per_worker: 1"), Kubectl())[0].resources.nodes == 1


ZONE_A, TOLERATED = (
    "node_selector: {zone: a}",
    "tolerations: [{key: gpu, value: 'yes', effect: NoSchedule}]",
)
IN_ZONE = {**FOUR, "metadata": {"labels": {"zone": "a"}}}
YES = node("4", taints=[{"key": "gpu", "value": "yes", "effect": "NoSchedule"}])
CORDONED = node("4", taints=[{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}])


def required(rule):
    terms = f"{{nodeSelectorTerms: [{{matchExpressions: [{{key: zone, {rule}}}]}}]}}"
    return f"affinity: {{nodeAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: {terms}}}}}"


@pytest.mark.parametrize(
    ("kubernetes", "nodes", "held"),
    [
        (required("operator: In, values: [a, b]"), [IN_ZONE, EIGHT], 2),
        (required("operator: NotIn, values: [a, b]"), [IN_ZONE, EIGHT], 4),
        (required("operator: Exists"), [IN_ZONE, EIGHT], 2),
        (required("operator: DoesNotExist"), [IN_ZONE, EIGHT], 4),
        (required("operator: Gt, values: ['3']"), [IN_ZONE, EIGHT], 6),  # the scheduler decides
        ("", [FOUR, node("4", cpu="7"), ONE], 2),  # a pod requests 8 CPUs and 2 GPUs
        ("", [node("8", cpu="20")], 2),
        (ZONE_A, [IN_ZONE, FOUR], 2),
        ("", [YES, CORDONED], 2),  # the cordon ends
        (TOLERATED, [YES], 2),
        (TOLERATED.replace("yes", "no"), [YES], 0),
        ("tolerations: [{operator: Exists}]", [YES], 2),
        ("host_network: true, node_networks: [10.0.0.0/16]", [EIGHT, FOUR], 2),  # one on a node
        ("worker_resources: {rdma/ib: 1}", [EIGHT], 0),
    ],
)
def test_how_many_pods_the_nodes_hold(make, kubernetes, nodes, held):
    job = make("workers: 2, nodes: 1, gpus_per_worker: 1", kubernetes)
    assert pods_held(pod_of(job), nodes) == held


@pytest.mark.parametrize(
    ("text", "number"), [("500m", "0.5"), ("16Gi", 16 * 2**30), (4, 4), ("1.5k", 1500), (None, 0), ("x", 0)]
)
def test_a_quantity_is_read_as_kubernetes_does(text, number):
    assert quantity(text) == Decimal(number)


def test_a_patch_that_leaves_no_worker_is_refused_before_its_pods_are_counted(make):
    replaced = "{op: replace, path: /spec/rayClusterSpec/workerGroupSpecs, value: []}"
    with pytest.raises(JobError, match=r"workerGroupSpecs has no group"):
        divided(make("workers: 2, gpus_per_worker: 1", f"patches: [{replaced}]"), [EIGHT])


RANGES = [
    ("workers: [2, 8], gpus_per_worker: 1", [FOUR], (2, 4), (1, 2)),
    ("workers: [2, 8], gpus_per_worker: 1", [FOUR, ONE, TAINTED], (2, 4), (1, 2)),
    ("workers: [2, 8], gpus_per_worker: 1", [node("2")], 2, 1),
    ("workers: [2, 8], gpus_per_worker: 1", [EIGHT], (2, 8), (1, 4)),
    ("workers: [4, 8], nodes: [1, 2], gpus_per_worker: 1", [FOUR], 4, 1),
    ("nodes: [1, 4], gpus_per_node: 4", [EIGHT], None, (1, 2)),
    ("workers: [4, 8], nodes: [1, 2], gpus_per_worker: 1", [ONE], (4, 8), (1, 2)),  # it waits
    ("workers: [2, 8]", [node(None, cpu="20")], (2, 8), None),
]


@pytest.mark.parametrize(("resources", "nodes", "workers", "pods"), RANGES)
def test_a_range_of_workers_ends_at_what_the_nodes_have_room_for(make, resources, nodes, workers, pods):
    class Cluster(Kubectl):
        def list(self, kind):
            return nodes

    job, notes = with_nodes(make(resources), Cluster())
    assert (job.resources.workers, job.resources.nodes) == (workers, pods)
    is_less = job.resources.max_workers < make(resources).resources.max_workers
    assert is_less == any("resources.workers is taken as [" in note for note in notes)


def test_a_range_stays_where_the_cluster_adds_nodes_or_no_allowed_number_fits(make):
    job = make("workers: [2, 8], nodes: [1, 4], gpus_per_worker: 1", "autoscaled: true")
    assert fitted(job, [FOUR]) == (job, [])
