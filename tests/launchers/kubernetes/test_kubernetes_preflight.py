"""What a job names and the cluster does not have is refused by name, and a claim that not all pods can mount.

The cluster that is asked here is a fake, for the wording alone; tests/kubernetes/test_watching_pods.py asks a
real one.
"""

import json
from contextlib import nullcontext

import pytest

from clustertrain.errors import ClusterError
from clustertrain.launchers.kubernetes.cluster.kubectl import Kubectl
from clustertrain.launchers.kubernetes.cluster.preflight import check_cluster
from clustertrain.launchers.kubernetes.submit import SCHEDULER
from clustertrain.run.admission import Options
from clustertrain.run.command_line import UNKNOWN
from launchers.kubernetes.api_objects import pod, rayjob
from launchers.kubernetes.pod_job import make_job

__all__ = ["make_job"]


# -------------------------------------------------------------------------------------------- a fake cluster


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """fake({"get secret s": answer, …}) puts a kubectl on PATH; an answer of None is that it is forbidden."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

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
}


def test_a_run_that_nothing_keeps_from_starting(fake, make_job):
    assert check_cluster(make_job(), fake(SEEN)) == []


def test_a_remedy_is_typed_for_the_namespace_of_the_job(fake, make_job):
    with pytest.raises(ClusterError, match=r"\nkubectl --namespace=team create secret generic aws --from-"):
        check_cluster(make_job(kubernetes={"secrets": ["aws"]}), fake(SEEN))


def test_what_may_not_be_looked_at_is_left_out_and_named(fake, make_job):
    kubectl = fake({**SEEN, "get secret": None, "get nodes": None})
    (note,) = check_cluster(make_job(kubernetes={"secrets": ["aws"]}), kubectl)
    for kind in ("secret", "nodes"):
        assert f"may not get {kind}" in note


@pytest.mark.parametrize(
    ("modes", "nodes", "read_only", "is_enough"),
    [
        (["ReadWriteMany"], 9, False, True),
        (["ReadWriteOnce"], 1, False, True),
        (["ReadWriteOnce"], None, False, True),  # how many there are may not be looked at
        (["ReadWriteOnce"], 2, False, False),
        (["ReadWriteOncePod"], 1, False, False),
        (["ReadOnlyMany"], 2, False, False),
        (["ReadOnlyMany"], 2, True, True),
        (["ReadWriteOnce", "ReadWriteMany"], 2, False, True),
    ],
)
def test_a_claim_is_for_all_pods(fake, make_job, *, modes, nodes, read_only, is_enough):
    shared = {"claim": "shared", "mount": "/mnt/x", "read_only": read_only}
    job = make_job(kubernetes={"volumes": [{"claim": "runs", "mount": "/mnt/runs"}, shared]})
    seen = {
        "get nodes": None if nodes is None else {"items": [{}] * nodes},
        "get persistentvolumeclaim runs ": CLAIM,
        "get persistentvolumeclaim shared ": {"spec": {"accessModes": modes}},
    }
    kubectl = fake({**SEEN, **seen})
    if is_enough:
        check_cluster(job, kubectl)
        return
    with pytest.raises(ClusterError, match=f"Claim shared .* is {modes[0]}, and the head and each worker"):
        check_cluster(job, kubectl)


@pytest.mark.parametrize(("labels", "is_enough"), [({"zone": "a"}, True), ({}, False)])
def test_a_claim_for_one_node_is_enough_if_the_pods_may_use_one_node(fake, make_job, labels, is_enough):
    nodes = [
        {"spec": {"taints": [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]}},
        {"metadata": {"labels": {"zone": "a"}}},
        {"metadata": {"labels": {"zone": "b"}}},
    ]
    claim = {"spec": {"accessModes": ["ReadWriteOnce"]}}
    kubectl = fake({**SEEN, "get persistentvolumeclaim clustertrain ": claim, "get nodes": {"items": nodes}})
    with nullcontext() if is_enough else pytest.raises(ClusterError, match=r"kubernetes\.node_selector"):
        check_cluster(make_job(kubernetes={"node_selector": labels}), kubectl)


def test_a_claim_that_exists_stays_as_it_is_and_another_is_made(fake, make_job, tmp_path):
    """The API server refuses another size or class of one that exists, as the field of another manager."""
    claims = [{"claim": name, "mount": f"/{name}", "size": "1Gi"} for name in ("old", "new")]
    job = make_job(kubernetes={"namespace": "team", "volumes": claims})
    fake({"get namespace team": {}, "get persistentvolumeclaim old ": CLAIM, "--dry-run=server": {}})
    kubectl = tmp_path / "bin" / "kubectl"
    sent = tmp_path / "sent"
    kubectl.write_text(kubectl.read_text().replace("#!/bin/sh", f"#!/bin/sh\n(cat; echo) >>{sent}"))
    assert [*SCHEDULER.preflight(job, SCHEDULER.plan(job, Options()), UNKNOWN)] == []
    lines = sent.read_text().split("\n")
    kinds = [(each["kind"], each["metadata"].get("name")) for each in map(json.loads, filter(None, lines))]
    assert ("PersistentVolumeClaim", "new") in kinds and ("RayJob", "run-1") in kinds
    assert ("PersistentVolumeClaim", "old") not in kinds


@pytest.mark.parametrize("submitter", [[], [{"name": "ray-job-submitter", "state": {"terminated": {}}}]])
def test_the_next_start_ends_the_head_that_stays_also_with_a_submitter_that_has_ended(
    make_job, monkeypatch, submitter
):
    containers = [*submitter, {"name": "ray-head", "state": {"running": {}}}]
    head, called = pod("h", "head", containers=containers), []
    head["metadata"]["deletionTimestamp"] = "2026-11-21T20:00:00Z"
    made = {"apiVersion": "ray.io/v1", "kind": "RayJob", **rayjob("Complete", "SUCCEEDED")}
    monkeypatch.setattr(Kubectl, "get", lambda *_: made)
    monkeypatch.setattr(Kubectl, "list", lambda *_: [head])
    monkeypatch.setattr(Kubectl, "delete", lambda *_: None)
    monkeypatch.setattr(Kubectl, "__call__", lambda _, *argv, **options: called.append(argv))
    job = make_job()
    SCHEDULER.submit(job, SCHEDULER.plan(job, Options()), "", UNKNOWN)
    assert called[0] == ("exec", "h", "--container=ray-head", "--", "touch", "/tmp/clustertrain-leave")
