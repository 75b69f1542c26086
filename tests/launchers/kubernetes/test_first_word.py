"""What `submit` prints of a run that it has applied. The cluster is a fake, for the wording alone;
tests/kubernetes/test_watching_pods.py and test_site_rules.py ask a real one."""

import pytest

from clustertrain.job.file import parse_job
from clustertrain.launchers.kubernetes.cluster.kubectl import Kubectl
from clustertrain.launchers.kubernetes.observed import first_word as module
from clustertrain.launchers.shell import Unanswered
from launchers.kubernetes.api_objects import event, on_node, pending, quota_reserved, rayjob, workload

KUEUE = {"kueue.x-k8s.io/queue-name": "team"}


class Cluster:
    """Answers each look with the next of its states, the last of them again and again."""

    def __init__(self, *states):
        self.states, self.now = [*states], None

    def find(self, kind, name):
        self.now = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if isinstance(self.now, Exception):
            raise self.now
        return self.now["rayjobs"]

    def raw(self, path):
        assert path.endswith("/namespaces/team/localqueues/team/pendingworkloads")
        return self.now.get("pending")

    def list(self, kind, selector=""):
        return self.now.get(kind.partition(".")[0], [])

    events = Kubectl.events


def first_word(job, cluster):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Kubectl, "of", lambda job: cluster)
        return module.first_word(job)


JOB = parse_job("{name: cpu, function: 'train:train', image: 'a:1'}", "job.yaml")
SILENT = {"rayjobs": rayjob("", "")}


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(module, "_POLL_S", 0.0)
    monkeypatch.setattr(module, "_WITHIN_S", 0.2)


def waits(message):
    return pending("cpu-w1", "worker", message)


def with_pods(*pods):
    return {"rayjobs": rayjob("Initializing", ""), "pods": [*pods]}


def with_event(reason, message):
    made = event(reason, message, "RayCluster", "digits-abc")
    return {"rayjobs": rayjob("Initializing", ""), "events": [made]}


def queued(*conditions):
    return {"rayjobs": rayjob("Suspended", "", labels=KUEUE), "workloads": [workload(*conditions)]}


HEAD = on_node(pending("cpu-head", "head"), "n1")
SCHEDULED = with_pods(HEAD, on_node(pending("cpu-w1"), "n1"), on_node(pending("cpu-w2"), "n2"))
CPU = "0/3 nodes are available: 3 Insufficient cpu."
GPU = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
TAINT = "0/1 nodes are available: 1 node(s) had untolerated taint {gpu: yes}."
SELECTOR = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
QUOTA = (
    'pods "x" is forbidden: exceeded quota: small, requested: requests.memory=4Gi, used: requests.memory=0'
)
POLICY = 'pods "x" is forbidden: denied request: every pod names its owner in a label'
WORKERS_AND_HEAD = "resources (workers), kubernetes.head and kubernetes.submitter"


@pytest.mark.parametrize(
    ("state", "line", "keys"),
    [
        (with_pods(waits(CPU)), f"pod cpu-w1: Unschedulable: {CPU}", WORKERS_AND_HEAD),
        (
            with_pods(HEAD, waits(GPU)),
            f"pod cpu-w1: Unschedulable: {GPU}",
            "resources.gpus_per_worker, kubernetes.gpu_resource",
        ),
        (with_pods(waits(TAINT)), TAINT, "kubernetes.tolerations"),
        (with_pods(waits(SELECTOR)), SELECTOR, "kubernetes.node_selector, kubernetes.affinity"),
        (
            with_event("FailedToCreateHeadPod", QUOTA),
            "the head's pod cannot be created: exceeded quota: small",
            WORKERS_AND_HEAD,
        ),
        (with_event("FailedToCreateWorkerPod", POLICY), "worker pods cannot be created", "kubernetes.labels"),
        (with_event("FailedToCreateService", "no room"), "its pods cannot be created: no room", ""),
        (
            queued(quota_reserved("False", "couldn't assign flavors: insufficient quota for cpu")),
            "waits in queue team of Kueue: Pending: couldn't assign flavors",
            f"{WORKERS_AND_HEAD}, kubernetes.queue",
        ),
    ],
)
def test_the_reason_is_printed_with_the_keys_of_what_it_names(state, line, keys):
    first, *more = first_word(JOB, Cluster(SILENT, state)).splitlines()
    assert line in first and first.startswith(("waiting (nodes): ", "queued (scheduler): "))
    assert more == ([f"What it names is in {keys}."] if keys else [])


def test_pods_that_are_scheduled_are_counted():
    said = first_word(JOB, Cluster(SILENT, with_pods(HEAD), SCHEDULED))
    assert said == "all pods are scheduled: 3 pods on 2 nodes"


def test_a_queue_that_admits_the_run_is_not_the_end_of_the_wait():
    admitted = queued(quota_reserved("True", "Quota reserved"))
    assert "all pods are scheduled" in first_word(JOB, Cluster(queued(), admitted, SCHEDULED))


@pytest.mark.parametrize(("owner", "place"), [("u1", ", 12th in it"), ("u2", "")])
def test_the_position_in_a_queue_is_told_if_kueue_tells_it(owner, place):
    waits = {"metadata": {"ownerReferences": [{"uid": owner}]}, "positionInLocalQueue": 11}
    state = {**queued(quota_reserved("False", "no quota")), "pending": {"items": [waits]}}
    assert f"waits in queue team of Kueue{place}: Pending: no quota" in first_word(JOB, Cluster(state))


def test_a_run_that_is_suspended_by_hand_says_so():
    state = {"rayjobs": rayjob("Suspended", "", suspend=True)}
    assert first_word(JOB, Cluster(state)).startswith("queued (held): its RayJob is suspended by hand")


def test_a_cluster_that_says_nothing_is_one_line():
    assert first_word(JOB, Cluster(SILENT)) == ("note: the cluster has said nothing of its pods within 0.2 s")


def test_a_server_that_goes_away_is_a_note_since_the_run_is_applied():
    said = first_word(JOB, Cluster(SILENT, Unanswered("The cluster does not answer\nCheck it.")))
    assert said == "note: whether its pods start was not read: The cluster does not answer"
