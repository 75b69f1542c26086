"""What `status` makes of lost nodes, and of containers that end or never get ready.

tests/kubernetes/test_watching_pods.py asks a real API server and kubelet.
"""

from clustertrain.launchers.kubernetes.observed.lost_pods import needs_node_check, silent_containers
from clustertrain.launchers.kubernetes.observed.pod_problems import problems, seconds
from clustertrain.launchers.kubernetes.observed.state import Observed, standing_of

MADE = "2026-11-21T20:00:00Z"
MADE_AT = seconds(MADE)


def rayjob():
    groups = [{"groupName": "workers", "replicas": 2}]
    status = {"jobDeploymentStatus": "Running", "jobStatus": "RUNNING", "rayClusterName": "digits-abc"}
    return {
        "metadata": {"name": "digits", "namespace": "team", "uid": "u1", "creationTimestamp": MADE},
        "spec": {"submissionMode": "K8sJobMode", "rayClusterSpec": {"workerGroupSpecs": groups}},
        "status": {**status, "startTime": MADE},
    }


def pod(name, role, containers=({"name": "main", "state": {"running": {}}},)):
    return {
        "metadata": {"name": name, "labels": {"clustertrain.io/role": role}},
        "spec": {},
        "status": {"phase": "Running", "containerStatuses": [*containers]},
    }


HEAD, WORKERS, SUBMITTER = pod("h", "head"), (pod("w1", "worker"), pod("w2", "worker")), pod("s", "submitter")


def unhealthy(message):
    about = {"kind": "Pod", "name": "w1"}
    made = {"type": "Warning", "reason": "Unhealthy", "message": message}
    return {**made, "involvedObject": about, "lastTimestamp": "2026-11-21T20:00:09Z"}


def on_node(made, node="gpu-7", ready="False", **metadata):
    conditions = [{"type": "Ready", "status": ready}]
    spec, status = {**made["spec"], "nodeName": node}, {**made["status"], "conditions": conditions}
    return {**made, "metadata": {**made["metadata"], **metadata}, "spec": spec, "status": status}


def test_a_lost_node_is_named_with_what_to_do():
    pods = (on_node(HEAD), on_node(WORKERS[0]), WORKERS[1], SUBMITTER)
    observed = Observed(rayjob(), pods, lost_nodes={"gpu-7": "Kubelet stopped posting node status."})
    standing = standing_of(observed, None)
    assert (standing.state, standing.cause) == ("waiting", "nodes")
    assert standing.text.startswith(
        "node gpu-7 is NotReady (Kubelet stopped posting node status.), with h, w1."
    )
    assert "kubectl delete node gpu-7; " in standing.text
    assert standing.text.endswith("kubectl delete pod --force --grace-period=0 h w1")
    assert observed.head is None and observed.pods_text == "head does not run yet, 1 of 2 workers run"


def test_a_node_is_asked_for_only_where_a_pod_is_not_well():
    now = MADE_AT + 100
    assert not needs_node_check(on_node(HEAD, ready="True"), now)
    assert not needs_node_check(HEAD, now)
    assert needs_node_check(on_node(HEAD), now)
    assert needs_node_check(on_node(HEAD, ready="True", deletionTimestamp=MADE), now)
    assert not needs_node_check(on_node(HEAD, ready="True", deletionTimestamp=MADE), MADE_AT - 5)


def test_a_container_that_never_gets_ready_shows_its_last_words():
    box = {"name": "main", "ready": False, "state": {"running": {"startedAt": MADE}}}
    slow = pod("w1", "worker", containers=[box])
    assert silent_containers([slow], MADE_AT + 30) == []
    assert silent_containers([slow], MADE_AT + 90) == [("worker", "w1", "main")]
    (found,) = problems(
        [slow],
        [unhealthy("Readiness probe failed: code 1")],
        {},
        last_words={("worker", "main"): "waits for a licence"},
    )
    assert found.blocks
    assert found.text == (
        "pod w1: container main runs and does not get ready (Readiness probe failed: code 1): "
        "waits for a licence"
    )


def test_containers_that_end_show_their_last_words_once():
    box = {"name": "code", "state": {"terminated": {"exitCode": 1}}}
    pods = [pod(name, "worker", containers=[box]) for name in ("w1", "w2")]
    assert silent_containers(pods, MADE_AT) == [("worker", "w1", "code"), ("worker", "w2", "code")]
    words = {("worker", "code"): "No module named clustertrain"}
    (found,) = problems(pods, [], {}, last_words=words)
    assert found.text == "2 pods (w1, w2): container code ended with code 1: No module named clustertrain"


def test_a_container_that_could_not_be_started_shows_why():
    ended = {"exitCode": 128, "reason": "StartError", "message": 'exec: "python": not found in $PATH'}
    (found,) = problems([pod("h", "head", [{"name": "main", "state": {"terminated": ended}}])], [], {})
    assert found.text == 'pod h: container main ended with code 128: exec: "python": not found in $PATH'
