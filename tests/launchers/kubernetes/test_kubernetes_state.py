"""Where a run stands, from objects as the API server gives them; tests/kubernetes asks a real one."""

import json
from dataclasses import replace

import pytest

from clustertrain.job.file import parse_job
from clustertrain.launchers.kubernetes.observed.lost_pods import needs_node_check, silent_containers
from clustertrain.launchers.kubernetes.observed.pod_problems import problems, seconds, time_of
from clustertrain.launchers.kubernetes.observed.state import (
    ANY,
    NATIVE_STATES,
    Observed,
    native_of,
    standing_of,
)
from clustertrain.launchers.kubernetes.observed.view import View
from clustertrain.launchers.kubernetes.status import status_of
from clustertrain.observe.status_json import StoredStatus
from clustertrain.run.states import STATES
from launchers.kubernetes.api_objects import (
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
DEPLOYMENTS = ["", "Initializing", "Waiting", "Running", "Complete", "Failed", "ValidationFailed"]
DEPLOYMENTS += ["Suspending", "Suspended", "Retrying"]
JOBS = ["", "PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED"]
REASONS = ["", "SubmissionFailed", "DeadlineExceeded", "PreRunningDeadlineExceeded", "AppFailed"]
REASONS += ["JobDeploymentStatusTransitionGracePeriodExceeded", "ValidationFailed"]


HEAD, WORKERS = pod("h", "head"), (pod("w1", "worker"), pod("w2", "worker"))
SUBMITTER = pod("s", "submitter")
ALL = (HEAD, *WORKERS, SUBMITTER)


def ended(state="done", cause="finished", code=0, at=MADE_AT + 30, restarts=False):
    end = {"over": not restarts, "of_result": True, "exit_code": code, "rows": (("step", "9"),)}
    return StoredStatus(1, at, state, cause, "the text", **end)


def running(state="running", cause="training"):
    return StoredStatus(1, MADE_AT + 30, state, cause)


def exit_code(observed, stored, standing):
    status = status_of(View(JOB, observed, stored))
    assert status.standing == replace(standing, runner=None)
    return status.exit_code


# ------------------------------------------------------------------------------------------- KubeRay's words


@pytest.mark.parametrize("key", NATIVE_STATES)
def test_every_state_of_a_rayjob_means_one_of_ours(key):
    meaning = NATIVE_STATES[key]
    assert meaning.cause in STATES[meaning.state].causes


@pytest.mark.parametrize("deployment", DEPLOYMENTS)
@pytest.mark.parametrize("job", JOBS)
def test_no_combination_is_unknown_and_only_what_is_over_is_final(deployment, job):
    for reason in REASONS:
        meaning = native_of(deployment, job, reason)
        assert "unknown to this version" not in meaning.text
        assert STATES[meaning.state].final == (deployment in ("Complete", "Failed", "ValidationFailed"))


def test_a_state_to_come_means_that_the_run_lives():
    assert native_of("Scheduling", "RUNNING", "").state == "waiting"
    assert (("", ANY, ANY) in NATIVE_STATES) and native_of("Running", "NEW_ONE", "").state == "running"


def test_a_suspended_rayjob_is_suspended_before_the_operator_says_so():
    assert Observed(rayjob("", "", suspend=True)).native == NATIVE_STATES["Suspended", ANY, ANY]


# ------------------------------------------------------------------------------------------------ the joining


@pytest.mark.parametrize(
    ("deployment", "stored", "state", "over"),
    [
        ("Running", running(), "running", False),
        ("Running", running("staging", "data"), "staging", False),
        ("Running", running("waiting", "workers"), "waiting", False),
        ("Running", ended(), "done", True),  # Ray has not noticed yet
        ("Running", ended("preempted", "preempted", 75, restarts=True), "waiting", False),
        ("Running", ended("preempted", "preempted", 75), "waiting", False),  # as a pod prints it
        ("Running", ended(at=MADE_AT - 900), "waiting", False),  # the end of an earlier RayJob
        ("Running", StoredStatus(), "waiting", False),
        ("Running", None, "waiting", False),
        ("Running", StoredStatus(1, MADE_AT + 30, "lost", "vanished", over=True), "waiting", False),
    ],
)
def test_a_run_with_pods_stands_as_its_files_say(deployment, stored, state, over):
    standing = standing_of(Observed(rayjob(deployment), ALL), stored)
    assert (standing.state, standing.over) == (state, over)
    assert standing.cause in STATES[state].causes


def test_a_run_that_failed_has_the_text_of_its_result():
    """`status` prints it first; the storage has the whole result, and this machine only its status."""
    over = Observed(rayjob("Failed", "FAILED"), ALL)
    standing = standing_of(over, ended("failed", "out_of_memory"))
    assert (standing.state, standing.cause, standing.text) == ("failed", "out_of_memory", "the text")


def test_succeeded_without_a_result_is_lost_and_of_an_earlier_result_is_done():
    over = Observed(rayjob("Complete", "SUCCEEDED"))
    assert standing_of(over, StoredStatus()).state == "lost"
    assert standing_of(over, ended(at=MADE_AT - 900)).state == "done"  # there was nothing left to do
    assert standing_of(over, None).state == "done"  # nothing but its word is known


@pytest.mark.parametrize(
    ("reason", "message", "state", "cause", "code"),
    [
        ("AppFailed", "Job entrypoint command failed with exit code 2, last\nerror: no", "failed", "job", 2),
        ("AppFailed", "Job entrypoint command failed with exit code 4, last", "failed", "data", 4),
        ("AppFailed", "Submitter completed but Ray job not found", "failed", "error", 1),
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


def test_the_entrypoints_own_error_is_shown_out_of_rays_message():
    message = (
        "Job entrypoint command failed with exit code 2, last available logs:\nx\nerror: wrong\nmend it\n"
    )
    assert (
        standing_of(Observed(rayjob("Failed", "FAILED", "AppFailed", message)), None).text
        == "failed\nwrong\nmend it"
    )


def test_a_deadline_names_what_the_pods_waited_for():
    observed = Observed(rayjob("Failed", "", "PreRunningDeadlineExceeded", "has passed"), (pending(),))
    assert "1 Insufficient cpu" in standing_of(observed, None).text


def test_the_result_counts_when_the_rayjob_failed():
    stored = ended("stopped", "user", 75)
    observed = Observed(rayjob("Failed", "FAILED", "AppFailed"))
    standing = standing_of(observed, stored)
    assert (standing.state, standing.over, exit_code(observed, stored, standing)) == ("stopped", True, 75)


def test_a_run_that_saved_when_its_deadline_took_its_pods_is_stopped():
    observed = Observed(rayjob("Failed", "RUNNING", "DeadlineExceeded", "has passed"))
    stored = ended("preempted", "preempted", 75, restarts=True)
    standing = standing_of(observed, stored)
    assert (standing.state, standing.cause, standing.over) == ("stopped", "time_limit", True)
    assert standing.text == "reached kubernetes.deadline; submit it again to continue"
    assert exit_code(observed, stored, standing) == 75


def test_a_failure_that_kuberay_retries_is_not_the_end():
    stored = ended("failed", "error", 1)
    assert standing_of(Observed(rayjob(backoffLimit=0), ALL), stored).over
    assert not standing_of(Observed(rayjob(backoffLimit=1), ALL), stored).over
    assert standing_of(Observed(rayjob("Failed", "FAILED", "AppFailed", backoffLimit=1)), stored).over


def test_without_a_rayjob_the_files_alone_tell():
    assert standing_of(Observed(None), ended("stopped", "user", 75)).state == "stopped"
    assert standing_of(Observed(None), StoredStatus()).state == "cancelled"
    killed = StoredStatus(1, MADE_AT + 30, "lost", "vanished", over=True)
    assert standing_of(Observed(None), killed).state == "lost"


def test_a_run_whose_rayjob_was_deleted_is_not_over_while_it_saves():
    standing = standing_of(Observed(None), running())
    assert (standing.state, standing.over) == ("running", False)
    assert "its RayJob is deleted" in standing.text


def test_a_run_that_was_cancelled_before_it_began_has_nothing_to_continue():
    never = StoredStatus()
    assert exit_code(Observed(None), never, standing_of(Observed(None), never)) == 130


def test_a_lost_head_and_a_cordoned_node_are_waited_for_in_the_schedulers_words():
    waits = Observed(
        rayjob(), (HEAD, WORKERS[1], pending(message="0/1 nodes: 1 node(s) were unschedulable"), SUBMITTER)
    )
    standing = standing_of(waits, running("waiting", "workers"))
    assert standing.state == "waiting" and "were unschedulable" in standing.text
    assert "its driver has not started" in standing_of(Observed(rayjob(), ALL), StoredStatus()).text
    headless = standing_of(Observed(rayjob(), WORKERS), None)
    assert (headless.cause, headless.text) == ("nodes", "its head's pod does not run")


# ------------------------------------------------------------------------------------------------------ Kueue


QUEUED = {"kueue.x-k8s.io/queue-name": "team"}
NO_QUOTA = quota_reserved("False", "insufficient quota")


def test_kueue_says_why_a_run_is_queued():
    observed = Observed(rayjob("Suspended", "", labels=QUEUED, suspend=True), workload=workload(NO_QUOTA))
    standing = standing_of(observed, None)
    assert (standing.state, standing.cause) == ("queued", "scheduler")
    assert standing.text == "waits in queue team of Kueue: Pending: insufficient quota"


def test_a_preempted_run_is_queued_again():
    evicted = {"type": "Evicted", "status": "True", "reason": "Preempted", "message": "to make room"}
    observed = Observed(
        rayjob("Suspended", "", labels=QUEUED, suspend=True), workload=workload(evicted, NO_QUOTA)
    )
    standing = standing_of(observed, ended("preempted", "preempted", 75, restarts=True))
    assert (standing.state, standing.cause, standing.over) == ("queued", "requeued", False)
    assert (
        "evicted (Preempted): to make room; Pending: insufficient quota; it continues after" in standing.text
    )


def test_a_run_that_no_queue_has_is_held():
    standing = standing_of(Observed(rayjob("Suspended", "", suspend=True)), None)
    assert (standing.state, standing.cause) == ("queued", "held")
    assert (
        "Kueue has not processed" in standing_of(Observed(rayjob("Suspended", "", labels=QUEUED)), None).text
    )


# --------------------------------------------------------------------------------------------------- troubles


def container(state, **details):
    return pod("w1", "worker", phase="Pending", containers=[{"name": "c", "state": {state: details}}])


@pytest.mark.parametrize(
    ("thing", "events", "said"),
    [
        (pending(), [], "Unschedulable: 0/1 nodes are available: 1 Insufficient cpu."),
        (container("waiting", reason="ErrImagePull", message="no\nsuch"), [], "ErrImagePull: no such"),
        (container("waiting", reason="CreateContainerConfigError", message='secret "s"'), [], 'secret "s"'),
        (container("waiting", reason="CrashLoopBackOff"), [], "at every start (CrashLoopBackOff)"),
        (container("terminated", reason="Error", exitCode=3), [], "container c ended with code 3"),
        (container("terminated", reason="OOMKilled", exitCode=137), [], "killed at its memory limit"),
        (
            container("waiting", reason="ContainerCreating"),
            [
                event("FailedMount", 'configmap "gone" not found'),
                event("Unhealthy", "later", at="2027-01-01T00:00:00Z"),
            ],
            'FailedMount: configmap "gone" not found',
        ),
        (
            pending(message="pod has unbound immediate PersistentVolumeClaims"),
            [event("FailedBinding", "no storage class is set", "PersistentVolumeClaim", "shared")],
            "PersistentVolumeClaims; claim shared: FailedBinding: no storage class is set",
        ),
        (
            pod("w1", "worker", phase="Failed", reason="Evicted", message="low on disk"),
            [],
            "Evicted: low on disk",
        ),
    ],
)
def test_what_keeps_a_pod_from_running(thing, events, said):
    (problem,) = problems([thing], events, {})
    assert said in problem.text and problem.text.startswith("pod w1: ") and problem.blocks


QUEUES = ["kueue.x-k8s.io/queue-name", "volcano.sh/queue-name", "yunikorn.apache.org/queue"]


@pytest.mark.parametrize(
    ("bound", "deployment", "labels", "is_partial"),
    [
        (1, "Initializing", {}, True),
        (0, "Initializing", {}, False),
        (2, "Initializing", {}, False),
        (1, "Running", {}, False),
        *((1, "Initializing", {queue: "team"}, False) for queue in QUEUES),
    ],
)
def test_a_run_that_got_a_part_of_its_pods_says_what_starts_runs_as_a_whole(
    bound, deployment, labels, is_partial
):
    workers = [pending("w1"), pending("w2")]
    for each in workers[:bound]:
        each["spec"]["nodeName"] = "n"
    text = standing_of(Observed(rayjob(deployment, "", labels=labels), (HEAD, *workers)), None).text
    assert ("partial start: 1 of 2 workers' pods hold nodes" in text) == is_partial
    assert ("kubernetes.queue" in text) == is_partial


def test_the_heads_pod_can_be_read_after_the_end_while_it_stays_for_the_ttl():
    leaving = {**HEAD, "metadata": {**HEAD["metadata"], "deletionTimestamp": MADE}}
    assert Observed(rayjob("Complete", "SUCCEEDED"), (leaving,)).head == leaving
    assert Observed(rayjob(), (leaving,)).head is None
    ended = {**leaving, "status": pod("h", "head", state="terminated")["status"]}
    assert Observed(rayjob("Complete", "SUCCEEDED"), (ended,)).head is None


@pytest.mark.parametrize("thing", [*ALL, container("waiting", reason="PodInitializing")])
def test_pods_that_run_or_are_on_their_way_have_no_trouble(thing):
    assert problems([thing], [], {}) == []


@pytest.mark.parametrize("reason", ["OOMKilled", "Error"])
def test_a_container_that_was_killed_and_runs_again_blocks_nothing(reason):
    killed = {"terminated": {"reason": reason, "exitCode": 137}}
    again = pod("w1", "worker", containers=[{"name": "c", "state": {"running": {}}, "lastState": killed}])
    (problem,) = problems([again], [], {})
    assert not problem.blocks and "restarted" in problem.text
    assert (reason in problem.text) == (reason == "OOMKilled")


def test_a_pod_that_is_leaving_has_no_trouble():
    leaving = pending()
    leaving["metadata"]["deletionTimestamp"] = MADE
    assert problems([leaving], [], {}) == []


@pytest.mark.parametrize(
    ("reason", "kind", "there", "said"),
    [
        ("FailedToCreateHeadPod", "RayCluster", (), "the head's pod cannot be created: exceeded quota"),
        ("FailedToCreateWorkerPod", "RayCluster", (HEAD,), "worker pods cannot be created: exceeded quota"),
        ("FailedCreate", "Job", (HEAD, *WORKERS), "the submitter's pod cannot be created: exceeded quota"),
    ],
)
def test_a_pod_that_is_not_even_made(reason, kind, there, said):
    message = '(combined from similar events): pods "digits-x" is forbidden: exceeded quota: small'
    observed = Observed(rayjob(), there, (event(reason, message, kind, "digits-abc"),))
    assert said in standing_of(observed, None).text
    assert Observed(rayjob(), ALL, observed.events).problems == []  # it is there by now


def test_the_time_of_an_event_is_its_last():
    assert time_of(event("a", "b", at="2026-11-21T20:00:09Z")) == MADE_AT + 9
    newer = {"lastTimestamp": None, "eventTime": "2026-11-21T20:00:01.500000Z", "series": None}
    assert time_of(newer) == MADE_AT + 1.5
    assert time_of({}) == 0.0


# ------------------------------------------------------------- lost nodes, and the last words of containers


def test_a_lost_node_is_named_with_what_to_do():
    pods = (on_node(HEAD), on_node(WORKERS[0]), WORKERS[1], SUBMITTER)
    observed = Observed(rayjob(), pods, lost_nodes={"gpu-7": "Kubelet stopped posting node status."})
    standing = standing_of(observed, None)
    assert (standing.state, standing.cause) == ("waiting", "nodes")
    assert standing.text.startswith(
        "node gpu-7 is NotReady (Kubelet stopped posting node status.), with h, w1."
    )
    assert "kubectl delete node gpu-7; " in standing.text
    assert standing.text.endswith("kubectl delete pod --namespace=team --force --grace-period=0 h w1")
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
        [event("Unhealthy", "Readiness probe failed: code 1")],
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
    (found,) = problems(
        [pod("h", "head", containers=[{"name": "main", "state": {"terminated": ended}}])], [], {}
    )
    assert found.text == 'pod h: container main ended with code 128: exec: "python": not found in $PATH'


# ---------------------------------------------------------------------------------------- what the pods tell


def test_what_a_pod_tells_is_read_from_among_other_lines():
    stored = ended()
    line = json.dumps({**stored.__dict__})
    assert StoredStatus.parsed(f"a warning\n{line}\nanother") == stored
    assert StoredStatus.parsed('error: no\n{"other": 1}') is None
