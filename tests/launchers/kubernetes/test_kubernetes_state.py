"""Where a run stands, from objects as the API server gives them; tests/kubernetes asks a real one."""

import json
from dataclasses import replace

import pytest

from clustertrain.job.file import parse_job
from clustertrain.launchers.kubernetes.cluster.kubectl import Kubectl
from clustertrain.launchers.kubernetes.observed import view as module
from clustertrain.launchers.kubernetes.observed.pods import is_lost, seconds, troubles
from clustertrain.launchers.kubernetes.observed.state import Observed, standing_of, state_of
from clustertrain.launchers.kubernetes.observed.view import View, status_of
from clustertrain.launchers.shell import Unanswered
from clustertrain.observe.status_json import StoredStatus
from clustertrain.run_files.states import STATES
from launchers.kubernetes.sample_objects import (
    MADE,
    event,
    on_node,
    pending,
    pod,
    quota_reserved,
    rayjob,
    workload,
)

JOB = parse_job("{name: digits, function: 'm:f'}", "job.yaml")
MADE_AT = seconds(MADE)


KUEUE = {"kueue.x-k8s.io/queue-name": "team"}
HEAD, WORKERS = pod("h", "head"), (pod("w1", "worker"), pod("w2", "worker"))
SUBMITTER = pod("s", "submitter")
ALL = (HEAD, *WORKERS, SUBMITTER)


def ended(state="done", cause="finished", code=0, at=MADE_AT + 30, restarts=False):
    end = {"over": not restarts, "of_result": True, "exit_code": code, "rows": (("step", "9"),)}
    return StoredStatus(1, at, state, cause, "the text", **end)


def running(state="running", cause="training"):
    return StoredStatus(1, MADE_AT + 30, state, cause)


def waits(message):
    return event("FailedScheduling", message)


def exit_code(observed, stored, standing):
    status = status_of(View(JOB, observed, stored))
    assert status.standing == replace(standing, runner=None)
    return status.exit_code


# ------------------------------------------------------------------------------------------- KubeRay's words


@pytest.mark.parametrize(
    ("words", "phase", "why", "code"),
    [
        (("", "", ""), "waits", "has not processed it yet", None),
        (("Initializing", "", ""), "starts", "its pods are starting", None),
        (("Running", "PENDING", ""), "starts", "is being submitted to Ray", None),
        (("Running", "RUNNING", ""), "runs", "", None),
        (("Running", "NEW_ONE", ""), "runs", "", None),  # of a KubeRay to come
        (("Scheduling", "RUNNING", ""), "starts", "unknown to this version", None),
        (("Complete", "SUCCEEDED", ""), "ended", "", 0),
        (("Complete", "STOPPED", ""), "cancelled", "stopped in Ray", None),
        (("Failed", "RUNNING", "DeadlineExceeded"), "timed out", "reached kubernetes.deadline", None),
        (("Failed", "", "PreRunningDeadlineExceeded"), "ended", "kubernetes.start_deadline", 3),
        (("Failed", "", "SubmissionFailed"), "ended", "could not be submitted", 3),
        (("Failed", "FAILED", "AppFailed"), "ended", "failed", 1),
        (("Complete", "FAILED", ""), "ended", "failed", 1),
        (("ValidationFailed", "", "ValidationFailed"), "ended", "the KubeRay operator refuses it", 2),
        (("Failed", "", ""), "ended", "KubeRay reports no reason", None),
    ],
)
def test_the_words_of_kuberay_become_a_phase_with_its_reason(words, phase, why, code):
    state = state_of(Observed(rayjob(*words), ALL))
    assert (state.phase, state.code, state.goes_on) == (phase, code, True)
    assert why in state.why and bool(why) == bool(state.why)
    assert state.word == (", ".join(filter(None, words)) or "new")


@pytest.mark.parametrize("deployment", ["", "Suspending", "Suspended"])
@pytest.mark.parametrize(("labels", "phase"), [({}, "held"), (KUEUE, "waits")])
def test_a_suspended_rayjob_is_suspended_before_the_operator_says_so(deployment, labels, phase):
    state = state_of(Observed(rayjob(deployment, "", labels=labels, suspend=True)))
    assert state.phase == phase
    assert ("suspended by hand" in state.why) == (phase == "held")


# ------------------------------------------------------------------------------------------------ the joining


@pytest.mark.parametrize(
    ("stored", "state"),
    [
        (running(), "running"),
        (running("staging", "data"), "staging"),
        (running("waiting", "workers"), "waiting"),
        (ended(), "done"),  # Ray has not noticed yet, and until then no other is accepted
        (ended("preempted", "preempted", 75, restarts=True), "waiting"),
        (ended("preempted", "preempted", 75), "waiting"),  # as a pod prints it
        (ended(at=MADE_AT - 900), "waiting"),  # the end of an earlier RayJob
        (StoredStatus(), "waiting"),
        (None, "waiting"),
        (StoredStatus(1, MADE_AT + 30, "lost", "vanished", over=True), "waiting"),
    ],
)
def test_a_run_with_pods_stands_as_its_files_say_and_is_not_over(stored, state):
    standing = standing_of(Observed(rayjob(), ALL), stored)
    assert (standing.state, standing.over) == (state, False)
    assert standing.cause in STATES[state].causes


@pytest.mark.parametrize(
    ("reason", "message", "state", "cause", "code"),
    [
        ("AppFailed", "Job entrypoint command failed with exit code 2, last\nerror: no", "failed", "job", 2),
        ("AppFailed", "Job entrypoint command failed with exit code 4, last", "failed", "data", 4),
        ("AppFailed", "Submitter completed but Ray job not found", "failed", "error", 1),
        ("AppFailed", "Job entrypoint command failed with exit code 137, last", "lost", "vanished", 1),
        ("SubmissionFailed", "BackoffLimitExceeded", "failed", "cluster", 3),
        ("PreRunningDeadlineExceeded", "passed", "failed", "cluster", 3),
        ("DeadlineExceeded", "passed", "lost", "time_limit", 1),
        ("ValidationFailed", "spec is wrong", "failed", "job", 2),
    ],
)
def test_a_rayjob_that_failed_without_a_result(reason, message, state, cause, code):
    observed = Observed(rayjob("Failed", "FAILED", reason, message))
    for stored in (None, StoredStatus(), ended(at=MADE_AT - 900)):
        standing = standing_of(observed, stored)
        assert (standing.state, standing.cause, standing.over) == (state, cause, True)
        assert exit_code(observed, stored, standing) == code


NEVER_BEGAN, EARLIER = StoredStatus(), ended(at=MADE_AT - 900)
KILLED = StoredStatus(1, MADE_AT + 30, "lost", "vanished", over=True)
SUCCEEDED = Observed(rayjob("Complete", "SUCCEEDED"))
APP_FAILED = Observed(rayjob("Failed", "FAILED", "AppFailed"))


@pytest.mark.parametrize(
    ("observed", "stored", "state", "over", "code"),
    [
        (SUCCEEDED, NEVER_BEGAN, "lost", True, 1),
        (SUCCEEDED, EARLIER, "done", True, 0),  # there was nothing left to do
        (SUCCEEDED, None, "done", True, 0),  # nothing but its word is known
        (APP_FAILED, ended("stopped", "user", 75), "stopped", True, 75),
        (Observed(None), ended("stopped", "user", 75), "stopped", True, 75),
        (Observed(None), NEVER_BEGAN, "cancelled", True, 130),
        (Observed(None), KILLED, "lost", True, 1),
        (Observed(None), running(), "running", False, None),  # its RayJob is deleted, and it saves
    ],
)
def test_the_files_tell_what_the_rayjob_does_not(observed, stored, state, over, code):
    standing = standing_of(observed, stored)
    assert (standing.state, standing.over, exit_code(observed, stored, standing)) == (state, over, code)


def test_a_run_that_saved_when_its_deadline_took_its_pods_is_stopped():
    observed = Observed(rayjob("Failed", "RUNNING", "DeadlineExceeded", "has passed"))
    stored = ended("preempted", "preempted", 75, restarts=True)
    standing = standing_of(observed, stored)
    assert (standing.state, standing.cause, standing.over) == ("stopped", "time_limit", True)
    assert standing.text == (
        "its RayJob: Failed, RUNNING, DeadlineExceeded (reached kubernetes.deadline); "
        "submit it again to continue"
    )
    assert exit_code(observed, stored, standing) == 75


def test_a_lost_head_and_a_cordoned_node_are_waited_for_in_the_schedulers_words():
    pods = (HEAD, WORKERS[1], pending(), SUBMITTER)
    waiting = Observed(rayjob(), pods, (waits("0/1 nodes: 1 node(s) were unschedulable"),))
    standing = standing_of(waiting, running("waiting", "workers"))
    assert standing.state == "waiting" and "were unschedulable" in standing.text
    assert "it has begun no attempt yet" in standing_of(Observed(rayjob(), ALL), StoredStatus()).text
    headless = standing_of(Observed(rayjob(), WORKERS), None)
    assert (headless.cause, headless.text) == ("nodes", "its head's pod does not run")


# ------------------------------------------------------------------------------------------------------ Kueue


NO_QUOTA = quota_reserved("False", "insufficient quota")


def test_a_preempted_run_is_queued_again():
    evicted = {"type": "Evicted", "status": "True", "reason": "Preempted", "message": "to make room"}
    observed = Observed(
        rayjob("Suspended", "", labels=KUEUE, suspend=True), workload=workload(evicted, NO_QUOTA)
    )
    standing = standing_of(observed, ended("preempted", "preempted", 75, restarts=True))
    assert (standing.state, standing.cause, standing.over) == ("queued", "requeued", False)
    assert standing.text == (
        "Suspended (waits in queue team of Kueue: Preempted: to make room; Pending: insufficient quota); "
        "again after attempt 1"
    )


# --------------------------------------------------------------------------------------------------- troubles


def container(state, **details):
    return pod("w1", "worker", phase="Pending", containers=[{"name": "c", "state": {state: details}}])


UNREADY = pod("w1", "worker", containers=[{"name": "c", "ready": False, "state": {"running": {}}}])


@pytest.mark.parametrize(
    "thing",
    [
        pending(),
        container("waiting", reason="ErrImagePull", message="no such"),
        container("terminated", reason="Error", exitCode=3),
        UNREADY,
        pod("w1", "worker", "terminated", phase="Failed", reason="Evicted"),
    ],
)
def test_a_pod_that_does_not_run_has_its_newest_event(thing):
    events = [
        event("Failed", "later\nthan that", at="2027-01-01T00:00:00Z"),
        event("FailedScheduling", "0/1 nodes are available"),
        event("FailedScheduling", "of another pod", name="w2"),
    ]
    assert troubles([thing], events, missing=False) == ["Pod w1: Failed: later than that"]
    assert troubles([thing], [], missing=False) == []
    leaving = {**thing, "metadata": {**thing["metadata"], "deletionTimestamp": MADE}}
    assert troubles([leaving], events, missing=False) == []


def test_the_heads_pod_can_be_read_after_the_end_while_it_stays_for_the_ttl():
    leaving = {**HEAD, "metadata": {**HEAD["metadata"], "deletionTimestamp": MADE}}
    assert Observed(rayjob("Complete", "SUCCEEDED"), (leaving,)).head == leaving
    assert Observed(rayjob(), (leaving,)).head is None
    ended = {**leaving, "status": pod("h", "head", state="terminated")["status"]}
    assert Observed(rayjob("Complete", "SUCCEEDED"), (ended,)).head is None


@pytest.mark.parametrize("thing", [*ALL, pod("w1", "submitter", "terminated", phase="Succeeded")])
def test_pods_that_run_or_have_ended_well_have_no_trouble(thing):
    assert troubles([thing], [event("Unhealthy", "x", name=thing["metadata"]["name"])], missing=False) == []


@pytest.mark.parametrize(
    ("reason", "kind", "there"),
    [
        ("FailedToCreateHeadPod", "RayCluster", ()),
        ("FailedToCreateWorkerPod", "RayCluster", (HEAD,)),
        ("FailedCreate", "Job", (HEAD, *WORKERS)),
    ],
)
def test_why_a_pod_is_not_made_is_shown_until_it_is_there(reason, kind, there):
    message = '(combined from similar events): pods "digits-x" is forbidden: exceeded quota: small'
    observed = Observed(rayjob(), there, (event(reason, message, kind, "digits-abc"),))
    text = standing_of(observed, None).text
    assert "exceeded quota" in text and text.startswith(f"{kind} digits-abc: {reason}: ")
    assert Observed(rayjob(), ALL, observed.events).troubles == []  # it is there by now


def test_what_a_run_is_told_has_each_trouble_and_each_line_once():
    message = "Job entrypoint command failed with exit code 2, last:\nerror: wrong\nmend it\n"
    failed = rayjob("Failed", "FAILED", "AppFailed", message)
    event_of_pod = waits("1 Insufficient cpu")
    for observed, stored, name in [
        (Observed(failed, (pending(),), (event_of_pod,)), StoredStatus(), "failed"),
        (Observed(rayjob(), (*ALL, pending()), (event_of_pod,)), running(), "running"),
        (Observed(rayjob(), (*WORKERS, pending()), (event_of_pod,)), None, "waiting"),
    ]:
        rows = status_of(View(JOB, observed, stored)).rows
        said = "\n".join(text for _, text in rows)
        assert rows[0][0] == name
        for line in (*observed.troubles, *str(observed.status.get("message") or "").splitlines()):
            assert said.count(line) == 1, said


# ------------------------------------------------------------------------------------------------ lost nodes


def test_a_pod_whose_containers_are_not_ready_is_on_no_lost_node():
    assert is_lost(on_node(HEAD)) and not is_lost(on_node(HEAD, ready="True")) and not is_lost(HEAD)
    assert is_lost(on_node(HEAD, deletionTimestamp=MADE))
    assert not is_lost(on_node(UNREADY)) and not is_lost(on_node(pending()))


# ---------------------------------------------------------------------------------------- what the pods tell


def test_the_status_that_a_pod_prints_is_read_from_among_other_lines():
    stored = ended()
    line = json.dumps({**stored.__dict__})
    assert StoredStatus.parsed(f"a warning\n{line}\nanother") == stored
    assert StoredStatus.parsed('error: no\n{"other": 1}') is None


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
        patch.setattr(module, "FIRST_WORD_POLL_S", 0.0)
        patch.setattr(module, "FIRST_WORD_S", 0.2)
        return module.first_word(job)


JOB_OF_CPU = parse_job("{name: cpu, function: 'train:train', image: 'a:1'}", "job.yaml")
SILENT = {"rayjobs": rayjob("", "")}


def test_submit_says_in_one_line_that_the_cluster_has_said_nothing():
    assert first_word(JOB_OF_CPU, Cluster(SILENT)) == (
        "note: the cluster has said nothing of its pods within 0.2 s"
    )


def test_submit_notes_that_the_server_went_away_after_the_run_was_applied():
    said = first_word(JOB_OF_CPU, Cluster(SILENT, Unanswered("The cluster does not answer\nCheck it.")))
    assert said == "note: whether its pods start was not read: The cluster does not answer"
