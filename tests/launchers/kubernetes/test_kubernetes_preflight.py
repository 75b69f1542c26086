"""Whether a cluster could hold a run, from objects as the API server gives them, and what is refused by name.

The cluster that is asked here is a fake, for the wording alone; tests/kubernetes/test_watching_pods.py asks a
real one.
"""

import json

import pytest

from clustertrain.errors import ClusterError
from clustertrain.job.file import parse_job
from clustertrain.launchers.kubernetes.capacity import pod_groups_of, why_no_nodes
from clustertrain.launchers.kubernetes.kubectl import Kubectl
from clustertrain.launchers.kubernetes.pod_sections import Volume
from clustertrain.launchers.kubernetes.preflight import check_cluster, check_image, why_not_for_all
from clustertrain.launchers.kubernetes.quotas import why_no_quota
from clustertrain.launchers.kubernetes.render.manifests import manifests
from clustertrain.version import RAY_VERSION, __version__

JOB = """
name: digits
function: train:train
image: clustertrain:dev
resources: {{workers: 2, cpus_per_worker: 4, memory_per_worker: 7Gi{resources}}}
kubernetes: {{head: {{cpus: 1, memory: 4Gi}}{kubernetes}}}
"""


@pytest.fixture
def make_job(tmp_path, monkeypatch):
    """make_job(resources=", …", kubernetes=", …") is one whose worker's pod asks for 4 CPUs and 8 GiB."""
    (tmp_path / "code").mkdir()
    monkeypatch.chdir(tmp_path / "code")

    def make(resources="", kubernetes=""):
        return parse_job(JOB.format(resources=resources, kubernetes=kubernetes), "job.yaml")

    return make


def needs(job):
    return pod_groups_of(manifests(job)[-1])


def node(name="n1", labels=None, taints=(), **allocatable):
    amounts = {"cpu": "16", "memory": "64Gi", "ephemeral-storage": "90Gi", "pods": "110", **allocatable}
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"taints": list(taints)},
        "status": {"allocatable": amounts},
    }


GPU = {"nvidia.com/gpu": "4"}
TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
CORDONED = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
ZONE_A = ", node_selector: {zone: a}"
TOLERATED = ", tolerations: [{key: gpu, value: 'yes', effect: NoSchedule}]"
OTHER = ", tolerations: [{key: gpu, value: 'no'}]"


# -------------------------------------------------------------------------------------------------- the nodes


@pytest.mark.parametrize(
    ("resources", "kubernetes", "nodes"),
    [
        ("", "", [node()]),
        ("", "", [node(taints=[CORDONED])]),  # it comes back
        ("", "", [node(cpu="2"), node(cpu="16")]),
        ("", "", [node(cpu="6"), node(cpu="6")]),  # a worker on each
        ("", ZONE_A, [node(labels={"zone": "a"}), node()]),
        ("", TOLERATED, [node(taints=[TAINT])]),
        ("", ", tolerations: [{operator: Exists}]", [node(taints=[TAINT])]),
        (", nodes: 2, gpus_per_worker: 2", "", [node(**GPU)]),
    ],
)
def test_a_run_that_the_nodes_can_hold(make_job, resources, kubernetes, nodes):
    assert why_no_nodes(needs(make_job(resources, kubernetes)), nodes) is None


def test_a_range_of_workers_needs_room_for_all_of_them(make_job):
    """KubeRay submits Ray's job when all replicas run."""
    job = JOB.replace("workers: 2", "workers: [1, 3]").format(resources="", kubernetes="")
    make_job()
    assert why_no_nodes(needs(parse_job(job, "job.yaml")), [node(cpu="9"), node(cpu="4")]) is None
    assert why_no_nodes(needs(parse_job(job, "job.yaml")), [node(cpu="9")]) is not None


@pytest.mark.parametrize(
    ("resources", "kubernetes", "nodes", "said"),
    [
        (
            "",
            "",
            [node(cpu="3"), node(cpu="2")],
            "A worker's pod requests cpu 4, and the largest node has 3.",
        ),
        ("", "", [node(memory="6Gi")], "requests memory 8Gi, and the largest node has 6Gi."),
        (
            "",
            "",
            [node(memory="3500Mi")],
            "The head's pod requests memory 4Gi, and the largest",
        ),
        (", nodes: 2, gpus_per_worker: 1", "", [node()], "requests nvidia.com/gpu 1, and no node has any."),
        (
            ", nodes: 2, gpus_per_worker: 8",
            "",
            [node(**GPU)],
            "requests nvidia.com/gpu 8, and the largest node has 4.",
        ),
        ("", "", [node(cpu="2"), node("n2", memory="6Gi")], "no node has all of it"),
        (
            "",
            "",
            [node(cpu="6")],
            "2 worker pods request cpu 4, memory 8Gi, ephemeral-storage 1Gi each, and all nodes",
        ),
        ("", ZONE_A, [node(), node()], "None of 2 nodes has zone=a"),
        ("", "", [node(taints=[TAINT])], "may run on none of 1 nodes: their taints are gpu=yes:NoSchedule"),
        ("", OTHER, [node(taints=[TAINT])], "their taints are gpu=yes:NoSchedule"),
    ],
)
def test_a_run_that_no_node_or_too_few_can_hold(make_job, resources, kubernetes, nodes, said):
    why = why_no_nodes(needs(make_job(resources, kubernetes)), nodes)
    assert why is not None and said in why
    assert len(why.splitlines()) == 2


# ------------------------------------------------------------------------------------------------- the quotas


def quota(hard, used=None, **spec):
    return {"metadata": {"name": "small"}, "spec": {"hard": hard, **spec}, "status": {"used": used or {}}}


@pytest.mark.parametrize(
    "quotas",
    [
        [],
        [quota({"requests.cpu": "10", "pods": "4", "requests.memory": "32Gi"})],
        [quota({"services": "0", "requests.storage": "0"})],
        [quota({"pods": "0"}, scopes=["BestEffort"])],
    ],
)
def test_a_run_that_the_quotas_admit(make_job, quotas):
    assert why_no_quota(needs(make_job()), quotas, []) is None


@pytest.mark.parametrize(
    ("hard", "used", "said"),
    [
        (
            {"requests.cpu": "10"},
            {"requests.cpu": "2"},
            "8 of requests.cpu left (10 - 2 used), and the run needs "
            "1 (head) + 2 × 4 (workers) + 0.1 (submitter) = 9.1.",
        ),
        (
            {"memory": "20Gi"},
            {},
            "20Gi of memory left (20Gi - 0 used), and the run needs 4Gi (head) + 2 × 8Gi (workers) + 512Mi "
            "(submitter) = 20992Mi.",
        ),
        ({"limits.cpu": "7"}, {}, "needs 4 (head) + 2 × 4 (workers) + 1 (submitter) = 13."),
        ({"pods": "5"}, {"pods": "2"}, "3 of pods left (5 - 2 used), and the run needs 1 (head)"),
    ],
)
def test_a_run_that_a_quota_never_admits(make_job, hard, used, said):
    why = why_no_quota(needs(make_job()), [quota(hard, used)], [])
    assert why is not None and said in why


def test_pods_of_the_run_itself_make_room(make_job):
    wanted, full = needs(make_job()), quota({"pods": "4"}, {"pods": "4"})
    assert why_no_quota(wanted, [full], [])
    assert why_no_quota(wanted, [full], [*wanted, wanted[1]]) is None


# ------------------------------------------------------------------------------------------------- the claims


@pytest.mark.parametrize(
    ("modes", "nodes", "writes", "read_only", "said"),
    [
        (["ReadWriteMany"], 9, True, False, None),
        (["ReadWriteOnce"], 1, True, False, None),
        (["ReadWriteOnce"], 0, True, False, None),  # how many there are may not be looked at
        (["ReadWriteOnce"], 2, True, False, "only one node can mount it, and the pods may run on any of 2"),
        (["ReadWriteOncePod"], 1, True, False, "only one pod can mount it"),
        (["ReadOnlyMany"], 2, True, False, "the run writes its storage there"),
        (["ReadOnlyMany"], 2, False, True, None),
        (["ReadWriteOnce", "ReadWriteMany"], 2, True, False, None),
    ],
)
def test_a_claim_is_for_all_pods(modes, nodes, writes, read_only, said):
    volume = Volume(mount="/mnt/x", claim="shared", read_only=read_only)
    why = why_not_for_all(volume, modes, nodes, writes=writes)
    assert why is None if said is None else said in (why or "") and "shared" in (why or "")


# -------------------------------------------------------------------------------------------- a fake cluster


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """fake({"get secret s": answer, …}) puts a kubectl on PATH; an answer of None is that it is forbidden."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    for engine in ("podman", "docker"):  # has no image
        (folder / engine).write_text("#!/bin/sh\nexit 1\n")
        (folder / engine).chmod(0o755)

    def put(answers):
        cases = [_case(asked, answer) for asked, answer in answers.items()]
        missing = "echo 'Error from server (NotFound): it was not found' >&2; exit 1"
        listed = """*"s --output=json"*) echo '{"items": []}';;"""  # kinds are asked for in plural
        script = "\n".join(["#!/bin/sh", 'case "$*" in', *cases, listed, f"*) {missing};;", "esac", ""])
        (folder / "kubectl").write_text(script)
        (folder / "kubectl").chmod(0o755)
        return Kubectl("team")

    return put


def _case(asked, answer):
    says = f"echo '{json.dumps(answer)}'"
    if answer is None:
        who = f'User "ci" cannot get resource "{asked.split()[1]}"'
        says = f"echo 'Error from server (Forbidden): {who}' >&2; exit 1"
    return f'*"{asked}"*) {says};;'


CLAIM = {"spec": {"accessModes": ["ReadWriteMany"]}}
SEEN = {
    "get namespace team": {},
    "get persistentvolumeclaim clustertrain ": CLAIM,
    "get nodes": {"items": [node()]},
}


def test_a_run_that_nothing_keeps_from_starting(make_job, fake):
    job = make_job()
    assert check_cluster(job, manifests(job), fake(SEEN)) == []


def test_what_may_not_be_looked_at_is_left_out_and_named(make_job, fake):
    job = make_job(kubernetes=", secrets: [aws]")
    kubectl = fake({**SEEN, "get secret": None, "get nodes": None, "get resourcequotas": None})
    (note,) = check_cluster(job, manifests(job), kubectl)
    for kind in ("secret", "nodes", "resourcequotas"):
        assert f"may not get {kind}" in note


@pytest.mark.parametrize(
    ("kubernetes", "said"),
    [
        (", secrets: [aws]", "kubernetes.secrets names aws, and namespace team has no such secret."),
        (", pull_secrets: [registry]", "kubernetes.pull_secrets names registry"),
        (", service_account: trainer", "names trainer, and namespace team has no such serviceaccount"),
        (", priority_class: high", "kubernetes.priority_class names high"),
        (", queue: {name: gold}", "kubernetes.queue names gold, and namespace team has no such localqueues"),
        (", volumes: [{mount: /mnt/x, claim: gone}]", "names the claim gone, which does not exist"),
        (
            ", volumes: [{mount: /mnt/x, claim: new, size: 1Gi, storage_class: fast}]",
            "storage_class names fast",
        ),
        (
            ", volumes: [{mount: /mnt/x, claim: new, size: 1Gi}]",
            "the cluster has no default storage class.\nName one under storage_class; the cluster has: slow.",
        ),
    ],
)
def test_what_is_named_and_missing_is_refused_with_a_remedy(make_job, fake, kubernetes, said):
    job = make_job(kubernetes=kubernetes)
    classes = {"items": [{"metadata": {"name": "slow"}}]}
    kubectl = fake({**SEEN, "get storageclasses": classes})
    with pytest.raises(ClusterError) as caught:
        check_cluster(job, manifests(job), kubectl)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 2


def test_a_namespace_that_is_not_there(make_job, fake):
    job = make_job()
    with pytest.raises(ClusterError, match="There is no namespace team"):
        check_cluster(job, manifests(job), fake({}))


# -------------------------------------------------------------------------------------------------- the image


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (None, "has no label io.clustertrain.version"),
        ({"io.clustertrain.version": __version__, "io.clustertrain.ray": RAY_VERSION}, None),
        ({"io.clustertrain.version": __version__, "io.clustertrain.ray": "2.40.0"}, "has Ray 2.40.0"),
        ({"io.clustertrain.version": "9.9", "io.clustertrain.ray": RAY_VERSION}, "has clustertrain 9.9"),
    ],
)
def test_an_image_of_this_machine_is_the_kits_with_the_same_ray(
    make_job, tmp_path, monkeypatch, labels, said
):
    podman = tmp_path / "podman"
    podman.write_text(f"#!/bin/sh\necho '{json.dumps(labels)}'\n")
    podman.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    if said is None:
        check_image(make_job())
        return
    with pytest.raises(ClusterError, match=said):
        check_image(make_job())


def test_an_image_that_no_engine_here_has_is_left_to_the_pods(make_job, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    check_image(make_job())
