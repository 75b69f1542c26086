"""What a real API server refuses is said before anything is applied, in its own words."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from clusters.kube_addons import are_established
from clusters.kube_api import Refused
from clusters.kube_client import Kubernetes
from clustertrain.errors import EXIT_CLUSTER, ClusterError
from clustertrain.job.file import load_job
from clustertrain.launchers.kubernetes.cluster.kubectl import Kubectl
from clustertrain.launchers.kubernetes.render.manifests import manifests
from clustertrain.launchers.kubernetes.scheduler import check_admission
from clustertrain.launchers.shell import CommandFailed
from kubernetes.cluster_user import admission_policy, bind_role, inert
from launchers.kubernetes.sample_manifests import (
    ABSENT,
    CLUSTER,
    HEAD,
    RAYJOBS,
    RIGHT,
    Manifest,
    changed,
    gpu_node_examples,
    rayjob,
)

ENFORCE_LABEL = "pod-security.kubernetes.io/enforce"
_NO_RAYJOBS = "this team has no RayJobs"
NEWER_CRD = Path(__file__).parents[3] / "shared" / "kuberay" / "ray.io_rayjobs.yaml"


@pytest.fixture
def kubectl(kube: Kubernetes, namespace: str, monkeypatch: pytest.MonkeyPatch) -> Kubectl:
    for name in ("PATH", "KUBECONFIG"):
        monkeypatch.setenv(name, kube.environment[name])
    # Where CRDs were applied just now the server accepts objects before it serves their schemas.
    explained = ("explain", "rayjobs.spec", "--api-version=ray.io/v1")
    kube.wait_for(lambda: kube.kubectl(*explained, check=False).returncode == 0, 240, "no schema is served")
    return Kubectl(namespace)


@pytest.fixture
def user(user):
    """user(section=…) has a job whose RayJob the operator leaves alone."""
    return lambda **more: user(**{**inert(), **more})


def applied(kube: Kubernetes, namespace: str) -> list[str]:
    """What a submit has left of its objects; those that every namespace has are of nobody's."""
    selector = "app.kubernetes.io/managed-by=clustertrain"
    return [
        each for each in ("configmaps", "networkpolicies", "rayjobs") if kube.items(each, namespace, selector)
    ]


# ---------------------------------------------------------------------------------------- words of the server

# What is changed in a right RayJob, and what the server says of it.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"spec/backoffLimits": 1}, ".spec.backoffLimits: field not declared in schema"),
    ({"spec/backoffLimit": "2"}, ".spec.backoffLimit: expected numeric (int or float)"),
    ({f"{CLUSTER}/authOptions/mode": "x"}, 'Unsupported value: "x": supported'),
    ({"spec/preRunningDeadlineSeconds": 0}, "preRunningDeadlineSeconds in body should be"),
    ({f"{HEAD}/template": ABSENT}, "headGroupSpec.template: Required value"),
    ({"metadata/name": "Right"}, "a lowercase RFC 1123 subdomain"),
]


def test_a_refusal_is_in_the_words_of_the_server(kubectl):
    def refusal(change: dict[str, Any]) -> list[str]:
        with pytest.raises(ClusterError) as caught:
            check_admission([changed(rayjob(), change)], kubectl)
        return str(caught.value).splitlines()

    with ThreadPoolExecutor(4) as pool:
        for (_, words), (first, *said) in zip(
            REFUSED, pool.map(refusal, (change for change, _ in REFUSED)), strict=True
        ):
            assert first == "The API server refuses this, and nothing was applied:"
            assert words in "\n".join(said), said


def test_the_objects_of_the_kit_are_taken_and_the_dry_run_keeps_none(kubectl, kube, namespace):
    assert check_admission([*RIGHT.values()], kubectl) == []
    for resource in ("rayjobs", "rayclusters", "secrets", "networkpolicies"):
        assert kube.items(resource, namespace) == []


def test_workers_for_infiniband_are_taken_where_the_namespace_lets_them(
    kubectl, kube, namespace, tmp_path, monkeypatch
):
    """The example of the docs with all keys, on a cluster without such classes of pods."""
    (tmp_path / "code").mkdir()
    monkeypatch.chdir(tmp_path / "code")
    sets = [f"kubernetes.namespace={namespace}", "kubernetes.runtime_class=", "kubernetes.priority_class="]
    sets += ["kubernetes.worker_annotations={k8s.v1.cni.cncf.io/networks: roce}"]
    sets += ["kubernetes.worker_capabilities=[IPC_LOCK, SYS_NICE, SYS_PTRACE]"]
    Path("job.yaml").write_text(gpu_node_examples()[0])
    objects = manifests(load_job("job.yaml", sets))
    assert check_admission(objects, kubectl) == []
    for level, pods, words in (
        ("restricted", {"head", "workers"}, ("runAsUser=0", "host namespaces", "unrestricted capabilities")),
        ("baseline", {"workers"}, ("host namespaces", "non-default capabilities")),
        ("privileged", set(), ()),
    ):
        kube.patch("namespaces", namespace, {"metadata": {"labels": {ENFORCE_LABEL: level}}})
        refused = refused_pods(objects[-1], kubectl)
        assert refused.keys() == pods
        assert [each for each in words if each not in "".join(refused.values())] == [], refused


def refused_pods(rayjob: Manifest, kubectl: Kubectl) -> dict[str, str]:
    """What the server says of the pods of each group, created in a dry run as the operator would."""
    cluster, refused = rayjob["spec"]["rayClusterSpec"], {}
    for group in ({"groupName": "head", **cluster["headGroupSpec"]}, *cluster["workerGroupSpecs"]):
        metadata = {**group["template"]["metadata"], "generateName": "pretrain-"}
        pod = {**group["template"], "apiVersion": "v1", "kind": "Pod", "metadata": metadata}
        try:
            kubectl("create", "--dry-run=server", "--filename=-", input=json.dumps(pod))
        except CommandFailed as error:
            refused[group["groupName"]] = error.stderr
    return refused


@pytest.mark.newer_kuberay
def test_a_newer_kuberay_takes_the_rayjobs_of_the_kit(kubectl, kube):
    """Its CRD is in a group and under a name of its own, so that the operator's stays."""
    if not NEWER_CRD.exists():
        pytest.skip("KubeRay 1.7.0: the Go proxy does not serve it, and its CRD is not here")
    crd, name = yaml.load(NEWER_CRD.read_text(), yaml.CSafeLoader), "newrayjobs.newer.ray.io"
    crd["metadata"]["name"], crd["spec"]["group"] = name, "newer.ray.io"
    crd["spec"]["names"] = {"kind": "RayJob", "listKind": "RayJobList", "plural": "newrayjobs"}
    kube.apply(crd)
    try:
        kube.watch("customresourcedefinitions", "", are_established, 120, f"no {name}", name=name)
        sent = [changed(each, {"apiVersion": "newer.ray.io/v1"}) for each in RAYJOBS.values()]
        assert check_admission(sent, kubectl) == []
    finally:
        kube.delete("customresourcedefinitions", name)


# ---------------------------------------------------------------------------------- before anything is there


@pytest.fixture
def no_rayjobs(kube: Kubernetes, namespace: str) -> Iterator[None]:
    """A policy of the site, which nothing but its API server knows: RayJobs are refused in this namespace."""

    def is_refused() -> bool:
        try:
            kube.api.create(rayjob(), namespace, dryRun="All")
        except Refused as refused:
            return _NO_RAYJOBS in str(refused)
        return False

    with admission_policy(kube, namespace, {"ray.io": ["rayjobs"]}, {"false": _NO_RAYJOBS}):
        kube.wait_for(is_refused, 30, "the policy is not in force")
        yield


def test_nothing_is_applied_if_a_policy_refuses_the_last_object(user, kube, namespace, no_rayjobs):
    done = user()("submit", code=EXIT_CLUSTER)
    assert "ValidatingAdmissionPolicy " in done.stderr
    assert f"denied request: {_NO_RAYJOBS}" in done.stderr and "nothing was applied" in done.stderr
    assert applied(kube, namespace) == []
    # Without the dry run the others would be there: none of them is refused.
    kube.kubectl("apply", "--filename=-", input=user()("render").stdout, namespace=namespace, check=False)
    assert "configmaps" in applied(kube, namespace) and "rayjobs" not in applied(kube, namespace)


def test_nothing_is_applied_if_the_account_may_not_change_rayjobs(user, kube, namespace):
    own = user()
    own.kubeconfig = bind_role(kube, namespace, ("rayjobs", "patch"))
    for command in (("submit",), ("check", "--no-code")):
        assert 'cannot patch resource "rayjobs"' in own(*command, code=EXIT_CLUSTER).stderr
    assert applied(kube, namespace) == []


# --------------------------------------------------------------------------------------- an earlier RayJob


def test_a_rayjob_that_is_over_stays_if_the_next_one_is_refused(user, kube, namespace):
    own = user()
    own("submit")
    before = kube.get("rayjobs", own.name, namespace)
    over = {"status": {"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"}}
    kube.patch("rayjobs", own.name, over, namespace, "status")
    zzz = [{"op": "add", "path": "/spec/zzz", "value": 1}]
    refused = own("submit", "--set", f"kubernetes.patches={json.dumps(zzz)}", code=EXIT_CLUSTER)
    assert 'unknown field "spec.zzz"' in refused.stderr
    assert kube.get("rayjobs", own.name, namespace)["metadata"]["uid"] == before["metadata"]["uid"]

    # As a change of the one that is there this would be refused: somebody else has set the field since.
    argv = ("patch", "rayjob", own.name, "--type=merge", '--patch={"spec": {"backoffLimit": 7}}')
    kube.kubectl(*argv, "--field-manager=somebody", namespace=namespace)
    assert "is replaced; its storage stays" in own("submit").stdout
    assert kube.get("rayjobs", own.name, namespace)["metadata"]["uid"] != before["metadata"]["uid"]


# --------------------------------------------------------------------------- text that looks like a number


def test_text_that_looks_like_a_number_or_a_boolean_stays_text(user, kube, namespace, tmp_path):
    """What arrives is what the job file has, by `submit` and by `kubectl apply` of what `render` prints."""
    queue = {"kind": "volcano", "name": "1e9"}
    tolerations = [{"key": key, "value": value} for key, value in (("y", "089"), ("n", "0o17"), ("1e3", "y"))]
    own = user(**inert(queue=queue, tolerations=tolerations))
    own.job_file = own.job_file.rename(tmp_path / "n.yaml")
    # As JSON, which quotes all text: PyYAML writes 1e9 without quotes.
    own.job_file.write_text(json.dumps({**yaml.safe_load(own.job_file.read_text()), "name": "n"}))
    own("submit")
    own.kube.kubectl(
        "apply", "--filename=-", "--dry-run=server", input=own("render").stdout, namespace=namespace
    )
    sent = kube.get("rayjobs", "n", namespace)
    assert sent["metadata"]["labels"]["volcano.sh/queue-name"] == "1e9"
    pod = sent["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]
    assert [(each["key"], each["value"]) for each in pod["spec"]["tolerations"]] == [
        ("y", "089"),
        ("n", "0o17"),
        ("1e3", "y"),
    ]
    assert pod["metadata"]["labels"]["clustertrain.io/run"] == "n"


def test_code_and_policy_leave_with_the_rayjob_that_submit_made(user, kube, namespace):
    """Also those that a later RayJob has taken over from an earlier one."""
    own = user()
    kinds, selector = ("configmaps", "networkpolicies"), "clustertrain.io/run=watched"

    def owners() -> set[str]:
        found = [each for kind in kinds for each in kube.items(kind, namespace, selector)]
        assert len(found) == 2
        return {owner["uid"] for each in found for owner in each["metadata"]["ownerReferences"]}

    for _ in range(2):
        own("submit")
        made = kube.get("rayjobs", own.name, namespace)
        assert owners() == {made["metadata"]["uid"]}
        over = {"status": {"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"}}
        kube.patch("rayjobs", own.name, over, namespace, "status")
    kube.delete("rayjobs", own.name, namespace)
    for kind in kinds:
        kube.wait_until_gone(kind, namespace, 120, selector=selector)


# ------------------------------------------------------------------------------------------------- check


def test_check_asks_the_server_and_leaves_nothing(user, kube, namespace):
    own = user()
    said = own("check", "--no-code").stdout
    assert "note: its objects: ConfigMap " in said and f"RayJob {own.name}\n" in said
    assert f"{own.job_file} can be submitted: " in said
    zzz = [{"op": "add", "path": "/spec/zzz", "value": 1}]
    patch = ("--set", f"kubernetes.patches={json.dumps(zzz)}")
    assert "spec.zzz: field not declared" in own("check", "--no-code", *patch, code=EXIT_CLUSTER).stderr
    assert applied(kube, namespace) == []


def test_check_without_a_cluster_says_what_was_not_checked(user, tmp_path):
    own = user()
    own.kubeconfig = tmp_path / "none"
    began = time.monotonic()
    said = own("check", "--no-code").stdout
    assert "\nnote: not checked against the cluster: " in said
    assert time.monotonic() - began < 30
