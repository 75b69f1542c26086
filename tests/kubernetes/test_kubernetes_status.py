"""`status`, `logs`, `stop` and `ls` on a real cluster: they name what it says of runs that wait, and follow
one that trains, with the rights of k8s/rbac.yaml alone.
"""

import json

import pytest

from clusters.containers import kit_image
from clusters.kube_api import manifest
from clusters.kube_client import Kubernetes
from clusters.kube_pods import shell_pod
from clustertrain.errors import EXIT_CLUSTER, EXIT_JOB
from kubernetes.cluster_user import ROOT, User, bind_role, inert, unique_name, write_job

# A volume that is to be made, where nothing makes any.
UNBOUND = {"volumes": [{"mount": "/mnt/runs", "claim": "none", "size": "1Gi"}]}


@pytest.fixture
def user(kube: Kubernetes, shared_namespace: str, tmp_path):
    """user(section=…) has a job of its own in a namespace with a claim."""
    name = unique_name()
    yield lambda **more: User(kube, shared_namespace, write_job(tmp_path, shared_namespace, name, **more))
    kube.delete("rayjobs", name, shared_namespace)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"kubernetes": {"namespace": "nowhere"}}, 'namespaces "nowhere" not found'),
        ({"kubernetes": {"context": "nowhere"}}, 'context "nowhere" does not exist'),
    ],
)
def test_submit_refuses_what_is_not_there(user, more, said):
    done = user(**more)("submit", code=EXIT_CLUSTER)
    assert said in done.stderr and not done.stdout.startswith("RayJob")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"kubernetes": {"priority_class": "gone"}}, "no PriorityClass with name gone was found"),
        ({"kubernetes": {"service_account": "gone"}}, 'serviceaccount "gone" not found'),
        ({"resources": {"workers": 1, "gpus_per_worker": 1}}, "1 Insufficient nvidia.com/gpu"),
        ({"kubernetes": UNBOUND}, "unbound immediate PersistentVolumeClaims"),
    ],
    ids=["class", "account", "gpus", "claim"],
)
def test_submit_prints_what_the_cluster_says_first(user, more, said):
    printed = user(**more)("submit").stdout
    assert said in printed and "\nwaiting (nodes): " in printed


def test_submit_says_that_the_pods_are_scheduled(user):
    assert "all 2 pods are scheduled\n" in user()("submit").stdout


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("/spec/activeDeadlineSeconds", -1, "activeDeadlineSeconds must be a positive integer"),
        ("/spec/rayClusterSpec/workerGroupSpecs/0/minReplicas", 3, "minReplicas"),
    ],
)
def test_submit_says_why_the_operator_refuses_the_rayjob(user, path, value, said):
    own = user(kubernetes={"patches": [{"op": "add", "path": path, "value": value}]})
    first, *words, remedy = own("submit", code=EXIT_JOB).stderr.splitlines()
    assert first.endswith(f"RayJob {own.name} was applied, and the KubeRay operator refuses it")
    assert said in "\n".join(words)
    assert "the next submit replaces this RayJob" in remedy


def test_status_and_stop_of_a_run_without_a_rayjob_say_that_the_storage_was_not_read(user):
    own = user()
    for command in ("status", "stop"):
        said = own(command, code=EXIT_CLUSTER).stderr
        assert f"{own.name} has no RayJob in namespace {own.namespace}, and the storage was not read" in said
        assert "If it never ran there, `clustertrain submit --to kubernetes" in said


def test_a_run_that_waits_is_stopped_at_once_and_leaves_its_storage(kube, namespace, tmp_path):
    kube.make_volume(namespace, "runs")
    own = User(kube, namespace, write_job(tmp_path, namespace, kubernetes={"secrets": ["aws"]}))
    own.apply()
    own.wait_for_status('secret "aws" not found')
    said = own("stop").stdout
    assert "there is nothing to save yet" in said and "Kubernetes job watched is deleted" in said
    assert not kube.items("rayjobs", namespace) and not kube.items("networkpolicies", namespace)
    assert not kube.items("configmaps", namespace, "clustertrain.io/run=watched")
    assert kube.get("persistentvolumeclaims", "runs", namespace)["status"]["phase"] == "Bound"
    assert own("ls").stdout.splitlines() == ["NAME  STATE  STEP  FIGURES  ATTEMPT  WHERE  ETTR  HOURS"]


def test_a_lost_node_is_named(kube_alone, namespace, tmp_path):
    """The node has no kubelet, so its pods keep the status that they had."""
    own = User(kube_alone, namespace, write_job(tmp_path, namespace, **inert()))
    own.apply()
    running = {"jobDeploymentStatus": "Running", "jobStatus": "RUNNING", "rayClusterName": "watched-x"}
    kube_alone.patch("rayjobs", own.name, {"status": running}, namespace, "status")
    kube_alone.apply(manifest("Node", "gpu-7", spec={"unschedulable": True}))
    labels = {"clustertrain.io/run": "watched", "clustertrain.io/role": "head", "ray.io/cluster": "watched-x"}
    try:
        kube_alone.apply(shell_pod("watched-head", "", labels, nodeName="gpu-7"), namespace=namespace)
        box = {"name": "shell", "ready": True, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
        boxes = [box | {"image": "", "imageID": "", "restartCount": 0}]
        status = {"phase": "Running", "containerStatuses": boxes}
        ready = {"conditions": [{"type": "Ready", "status": "False"}]}
        kube_alone.patch("pods", "watched-head", {"status": status | ready}, namespace, "status")
        said = own("status").stdout
    finally:
        kube_alone.delete("nodes", "gpu-7")
    first = said.splitlines()[0]
    assert first.startswith("waiting  node gpu-7 is NotReady, with watched-head."), said
    assert first.endswith("kubectl delete node gpu-7")


@pytest.fixture
def trainer(kube: Kubernetes, namespace: str):
    """The user of the example, with the rights of k8s/rbac.yaml."""
    kube.load(kit_image())
    kube.make_volume(namespace, "clustertrain")
    sets = (f"kubernetes.namespace={namespace}", f"image={kit_image()}", "kubernetes.pull_policy=Never")
    return User(kube, namespace, ROOT / "k8s" / "digits.yaml", bind_role(kube, namespace), sets)


@pytest.mark.nightly  # in CI: the head's preStop hook in launchers/kubernetes/test_pod.py
@pytest.mark.timeout(900)
def test_a_run_is_followed_to_its_end_where_only_the_heads_pod_stays(trainer, kube, namespace):
    """It stays for 10 minutes, the default of kubernetes.ttl, unless the next start of the run ends it."""
    followed = trainer("submit", "--wait", "--set", "train.epochs=20", timeout_s=400).stdout
    assert "running (training)" in followed and "done (finished)" in followed
    assert "There is nothing to stop" in trainer("stop", code=EXIT_JOB).stderr
    roles = {role: f"clustertrain.io/run=digits,clustertrain.io/role={role}" for role in ("head", "worker")}
    kube.wait_until_gone("pods", namespace, 60, selector=roles["worker"])
    assert not kube.items("rayclusters", namespace)

    (head,) = kube.items("pods", namespace, roles["head"])
    assert "deletionTimestamp" in head["metadata"]
    name = head["metadata"]["name"]
    assert "Ray runtime started" in kube.logs(namespace, name, container="ray-head")
    assert "done (finished)" in trainer("status").stdout
    assert "2 workers started" in trainer("logs").stdout
    assert not kube.items("pods", namespace, "clustertrain.io/role=reader"), "the head's pod was asked"

    trainer("submit", "--set", "train.epochs=21")
    kube.wait_until_gone("pods", namespace, 60, name=name)
    trainer("stop")


@pytest.mark.timeout(900)
def test_a_run_that_trains_is_watched_and_stopped(trainer, kube, namespace, tmp_path):
    runs = kube.volume_folder(namespace, "clustertrain") / "runs"
    assert "no attempt in its storage" in trainer("status", code=EXIT_JOB).stderr
    trainer("submit", "--set", "train.epochs=2000")
    kube.wait_for(lambda: list(runs.glob("digits/g1/attempts/1/metrics-0.jsonl")), 300, "it does not train")
    status = trainer("status").stdout
    assert "running (training)" in status and "head runs, 2 of 2 workers run" in status
    assert "2 workers started" in trainer("logs").stdout
    assert "restart 0 begins" in trainer("logs", "--rank", "1").stdout
    assert "There are: [0, 1]." in trainer("logs", "--rank", "7", code=EXIT_JOB).stderr
    assert "running (training)" in trainer.find("status").stdout
    assert ["digits", "running"] in [line.split()[:2] for line in trainer("ls").stdout.splitlines()]
    assert "ready" in trainer.find("data", "ls").stdout  # in the head's pod
    assert "is in the cluster" in trainer.find("data", "fetch", code=EXIT_JOB).stderr
    said = trainer("stop").stdout
    assert "digits: stopped (user) at step" in said and "Kubernetes job digits is deleted" in said

    of_run = ("configmaps", namespace, "clustertrain.io/run=digits")
    kube.wait_for(lambda: not kube.items(*of_run), 60, "the job and its code outlive the RayJob")
    after = trainer("status").stdout  # read by a pod of its own
    assert "stopped (user)" in after and "none: it was deleted" in after
    logs = trainer("logs", "--attempt", "1").stdout
    assert "2 workers started" in logs
    # Not always the last line: a TERM may reach the supervisor before it is gone, which tells that, too.
    assert "; stopping as requested\n" in logs
    committed = {path.name for path in runs.glob("digits/g1/checkpoints/[0-9]*")}
    assert committed == {line.split()[0] for line in trainer.find("ckpt", "ls").stdout.splitlines()[1:]}
    trainer.find("ckpt", "export", "--output", str(tmp_path / "out.safetensors"))  # a reader pod sends it
    assert json.loads((tmp_path / "out.json").read_text())["checkpoint"] in committed
    readers = "clustertrain.io/role=reader"
    kube.wait_for(lambda: not kube.items("pods", namespace, readers), 240, "a reader pod stays")
