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

    def list(self, kind, selector=""):
        return self.now.get(kind.partition(".")[0], [])


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


def with_pods(*pods, **more):
    return {"rayjobs": rayjob("Initializing", ""), "pods": [*pods], **more}


def waits(message, *pods):
    made = event("FailedScheduling", message, name="cpu-w1")
    return with_pods(*pods, pending("cpu-w1", "worker"), events=[made])


def with_event(reason, message):
    made = event(reason, message, "RayCluster", "digits-abc")
    return {"rayjobs": rayjob("Initializing", ""), "events": [made]}


def queued(*conditions):
    return {"rayjobs": rayjob("Suspended", "", labels=KUEUE), "workloads": [workload(*conditions)]}


HEAD = on_node(pending("cpu-head", "head"), "n1")
SCHEDULED = with_pods(HEAD, on_node(pending("cpu-w1"), "n1"), on_node(pending("cpu-w2"), "n2"))
CPU = "0/3 nodes are available: 3 Insufficient cpu."
QUOTA = 'pods "x" is forbidden: exceeded quota: small, requested: requests.memory=4Gi'


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (waits(CPU), f"waiting (nodes): Pod cpu-w1: FailedScheduling: {CPU}"),
        (waits(CPU, HEAD), f"waiting (nodes): Pod cpu-w1: FailedScheduling: {CPU}"),
        (
            with_event("FailedToCreateHeadPod", QUOTA),
            f"waiting (nodes): RayCluster digits-abc: FailedToCreateHeadPod: {QUOTA}",
        ),
        (
            queued(quota_reserved("False", "couldn't assign flavors: insufficient quota for cpu")),
            "queued (scheduler): waits in queue team of Kueue: Pending: couldn't assign flavors: "
            "insufficient quota for cpu",
        ),
    ],
)
def test_the_reason_is_printed_in_the_words_of_the_cluster(state, said):
    assert first_word(JOB, Cluster(SILENT, state)) == said


def test_pods_that_are_scheduled_are_counted():
    said = first_word(JOB, Cluster(SILENT, with_pods(HEAD), SCHEDULED))
    assert said == "all 3 pods are scheduled"


def test_a_queue_that_admits_the_run_is_not_the_end_of_the_wait():
    admitted = queued(quota_reserved("True", "Quota reserved"))
    assert "all 3 pods are scheduled" in first_word(JOB, Cluster(queued(), admitted, SCHEDULED))


def test_a_run_that_is_suspended_by_hand_says_so():
    state = {"rayjobs": rayjob("Suspended", "", suspend=True)}
    assert first_word(JOB, Cluster(state)).startswith("queued (held): its RayJob is suspended by hand")


def test_a_cluster_that_says_nothing_is_one_line():
    assert first_word(JOB, Cluster(SILENT)) == ("note: the cluster has said nothing of its pods within 0.2 s")


def test_a_server_that_goes_away_is_a_note_since_the_run_is_applied():
    said = first_word(JOB, Cluster(SILENT, Unanswered("The cluster does not answer\nCheck it.")))
    assert said == "note: whether its pods start was not read: The cluster does not answer"
