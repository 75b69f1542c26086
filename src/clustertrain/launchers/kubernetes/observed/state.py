"""The state of a RayJob, from its status, queue, pods and events, as scheduler/run_state.py needs it. Pure
functions. Pods and events show why a run does not start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from clustertrain.launchers.kubernetes.observed.pod_problems import (
    LastWords,
    Object,
    Problem,
    has_running_containers,
    is_running,
    is_terminating,
    node_of,
    problems,
    role_of,
    seconds,
)
from clustertrain.launchers.kubernetes.render.fields import at, items, mapping
from clustertrain.launchers.scheduler import run_state
from clustertrain.launchers.scheduler.interface import JobState, Meaning, ordinal
from clustertrain.launchers.scheduler.run_state import Files
from clustertrain.observe.run_state import RunState
from clustertrain.observe.status_json import StoredStatus
from clustertrain.run.states import CAUSE_OF_CODE, STATES

ANY = "*"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_QUEUE_LABELS = {QUEUE_LABEL, "volcano.sh/queue-name", "yunikorn.apache.org/queue"}
_SUMMARY = ("jobDeploymentStatus", "jobStatus", "reason")
_JOB = "its RayJob"
_CLOCK_SKEW_S = 5.0  # the clocks of a pod and of the API server may differ by this much


# By (jobDeploymentStatus, jobStatus, reason) of KubeRay 1.6.2 and 1.7.0. The first row that fits counts.
NATIVE_STATES: Mapping[tuple[str, str, str], Meaning] = {
    ("", ANY, ANY): Meaning("queued", "scheduler", "the KubeRay operator has not processed it yet"),
    ("Initializing", ANY, ANY): Meaning("waiting", "nodes", "its pods are starting"),
    ("Waiting", ANY, ANY): Meaning("waiting", "workers", "waits until a user submits its job to Ray"),
    ("Running", "", ANY): Meaning(
        "waiting", "workers", "its pods run, and its job is being submitted to Ray"
    ),
    ("Running", "PENDING", ANY): Meaning("waiting", "workers", "Ray starts its job"),
    ("Running", ANY, ANY): Meaning("running", "training", "runs"),
    ("Suspending", ANY, ANY): Meaning("queued", "requeued", "is being suspended: its pods are deleted"),
    ("Suspended", ANY, ANY): Meaning("queued", "scheduler", "is suspended"),
    ("Retrying", ANY, ANY): Meaning("waiting", "nodes", "failed, and is retried with new pods"),
    ("Complete", "SUCCEEDED", ANY): Meaning("done", "finished", "succeeded", "succeeded"),
    ("Complete", "STOPPED", ANY): Meaning("cancelled", "cancelled", "its job was stopped in Ray"),
    ("Complete", "FAILED", ANY): Meaning("failed", "error", "failed"),
    ("Complete", ANY, ANY): Meaning("lost", "vanished", "ended, and KubeRay reports no status of its job"),
    ("Failed", "STOPPED", ANY): Meaning("cancelled", "cancelled", "its job was stopped in Ray"),
    ("Failed", ANY, "AppFailed"): Meaning("failed", "error", "failed"),
    ("Failed", ANY, "SubmissionFailed"): Meaning(
        "failed", "cluster", "its job could not be submitted to Ray"
    ),
    ("Failed", ANY, "DeadlineExceeded"): Meaning("lost", "time_limit", "reached kubernetes.deadline"),
    ("Failed", ANY, "PreRunningDeadlineExceeded"): Meaning(
        "failed",
        "cluster",
        "its pods did not start within kubernetes.start_deadline; the events of the namespace say why",
    ),
    ("Failed", "SUCCEEDED", "JobDeploymentStatusTransitionGracePeriodExceeded"): Meaning(
        "done", "finished", "succeeded, but its submitter's pod did not end", "succeeded"
    ),
    ("Failed", ANY, "JobDeploymentStatusTransitionGracePeriodExceeded"): Meaning(
        "lost", "vanished", "its submitter's pod ended long before it"
    ),
    ("Failed", ANY, "ValidationFailed"): Meaning("failed", "job", "the KubeRay operator refuses it"),
    ("Failed", ANY, ANY): Meaning("lost", "vanished", "failed, and KubeRay reports no reason"),
    ("ValidationFailed", ANY, ANY): Meaning("failed", "job", "the KubeRay operator refuses it"),
}
_UNKNOWN = Meaning("waiting", "nodes", "is in a state that is unknown to this version of clustertrain")


def native_of(*given: str) -> Meaning:
    """The row of NATIVE_STATES. An unknown state, of a later KubeRay, counts as a run that has not ended."""
    for row, native in NATIVE_STATES.items():
        if all(expected in (ANY, each) for expected, each in zip(row, given, strict=True)):
            return native
    return _UNKNOWN


@dataclass(frozen=True)
class Observed:
    """The objects of a run in the cluster, at one moment.

    Attributes:
        rayjob: None if it does not exist.
        pods: of the run, including those that are terminating.
        events: of the objects of the run, and of claims.
        workload: Kueue's Workload of the RayJob, or None if none exists or none could be read.
        position: of the RayJob in its queue, from 1; None if Kueue does not tell.
        lost_nodes: why a node of the pods is not ready, by its name.
        last_words: what containers printed last, if it explains a problem.
    """

    rayjob: Object | None
    pods: tuple[Object, ...] = ()
    events: tuple[Object, ...] = ()
    workload: Object | None = None
    position: int | None = None
    lost_nodes: Mapping[str, str] = field(default_factory=dict)
    last_words: LastWords = field(default_factory=dict)

    @property
    def _status(self) -> Mapping[str, Any]:
        return mapping(self.rayjob, "status")

    @property
    def native(self) -> Meaning:
        deployment, job, reason = (str(self._status.get(key, "")) for key in _SUMMARY)
        if not deployment and at(self.rayjob, "spec", "suspend"):
            deployment = "Suspended"  # the operator will set it
        return native_of(deployment, job, reason)

    @property
    def is_suspended(self) -> bool:
        return self.native is NATIVE_STATES["Suspended", ANY, ANY]

    @property
    def summary(self) -> str:
        """The state in KubeRay's terms: `Running, RUNNING`."""
        return ", ".join(str(self._status[key]) for key in _SUMMARY if self._status.get(key)) or "new"

    @property
    def message(self) -> str:
        """The words of KubeRay or Ray about the end."""
        return str(self._status.get("message") or "")

    @property
    def ray_cluster(self) -> str:
        return str(self._status.get("rayClusterName", ""))

    @property
    def is_over(self) -> bool:
        """Whether the operator is done with the RayJob."""
        return self.rayjob is not None and STATES[self.native.state].final

    @property
    def queue(self) -> str:
        """The RayJob's queue in Kueue, or empty for none."""
        return str(at(self.rayjob, "metadata", "labels", QUEUE_LABEL) or "")

    @property
    def queue_conditions(self) -> Mapping[str, Object]:
        """Kueue's conditions of the RayJob's Workload, by type."""
        return {each["type"]: each for each in items(self.workload, "status", "conditions")}

    @property
    def created_at(self) -> float:
        created = at(self.rayjob, "metadata", "creationTimestamp")
        return seconds(created) if created else 0.0

    def made(self, stored: StoredStatus) -> bool:
        """Whether this RayJob made the newest attempt, not an earlier RayJob of the same name."""
        return stored.attempt is not None and stored.began_at >= self.created_at - _CLOCK_SKEW_S

    @property
    def is_retried(self) -> bool:
        """Whether KubeRay creates another Ray cluster after a failure."""
        return int(self._status.get("failed") or 0) < int(at(self.rayjob, "spec", "backoffLimit") or 0)

    @property
    def deadline_at(self) -> float | None:
        """When preRunningDeadlineSeconds end, in seconds since 1970, or None without that deadline."""
        started, limit_s = self._status.get("startTime"), at(self.rayjob, "spec", "preRunningDeadlineSeconds")
        counts = self._status.get("jobDeploymentStatus") in ("Initializing", "Waiting")
        return seconds(started) + float(limit_s) if counts and started and limit_s else None

    @property
    def head(self) -> Object | None:
        """The head's pod, or None if it does not run. After the end it is terminating, for kubernetes.ttl."""
        runs = has_running_containers if self.is_over else is_running
        return next((pod for pod in self.pods if role_of(pod) == "head" and self._runs(pod, runs)), None)

    def _runs(self, pod: Object, runs: Callable[[Object], bool] = is_running) -> bool:
        """Whether a pod runs; on a lost node nobody knows, and nothing can be read from it."""
        return runs(pod) and node_of(pod) not in self.lost_nodes

    @property
    def expected_pods(self) -> dict[str, int]:
        """How many pods of each role should exist now."""
        deployment, spec = self._status.get("jobDeploymentStatus", ""), mapping(self.rayjob, "spec")
        if deployment not in ("Initializing", "Running"):
            return {}
        groups = items(spec, "rayClusterSpec", "workerGroupSpecs")
        workers = sum(int(group.get("replicas") or 0) for group in groups)
        has_submitter = deployment == "Running" and spec.get("submissionMode") == "K8sJobMode"
        return {"head": 1, "worker": workers, **({"submitter": 1} if has_submitter else {})}

    @cached_property
    def problems(self) -> list[Problem]:
        return problems(self.pods, self.events, self.expected_pods, self.lost_nodes, self.last_words)

    @property
    def pods_text(self) -> str:
        """The pods in one line: `head runs, 1 of 2 workers run`"""
        there = [pod for pod in self.pods if not is_terminating(pod)]
        head, workers = ([pod for pod in there if role_of(pod) == role] for role in ("head", "worker"))
        how = "has no pod" if not head else "runs" if self._runs(head[0]) else "does not run yet"
        run, of = sum(map(self._runs, workers)), max(self.expected_pods.get("worker", 0), len(workers))
        return f"head {how}, {run} of {of} workers run" if there else "none"


@dataclass(frozen=True)
class RayJobState(JobState):
    """The state of a RayJob. `observed`: without its pods, why it does not start is not known."""

    again = "it continues after attempt"
    stays = True

    observed: Observed = field(default_factory=lambda: Observed(None))

    @classmethod
    def of(cls, job_id: str, observed: Observed) -> RayJobState:
        return cls(job_id, observed.summary, submitted_at=observed.created_at, observed=observed)

    @property
    def meaning(self) -> Meaning:
        native = self.observed.native
        if native.state == "waiting" and self.observed.head is None:
            return replace(native, cause="nodes")
        if self.observed.is_suspended:
            return _why_suspended(self.observed)
        # The exit code of the entrypoint, which Ray puts into its message.
        if native.cause == "error" and (code := re.search(r"exit code (\d+)", self.observed.message)):
            return replace(native, cause=CAUSE_OF_CODE.get(int(code[1]), native.cause))
        return native

    @property
    def why_it_waits(self) -> str:
        return self.meaning.text

    @property
    def before_its_attempt(self) -> Meaning:
        if self.observed.head is None:
            return Meaning("waiting", "nodes", "its head's pod does not run")
        return Meaning("waiting", "workers", "its driver has not started an attempt")

    @property
    def trouble(self) -> str:
        native = self.meaning.text if self.meaning.state == "waiting" else ""
        return "\n".join(filter(None, (*self._blocking, _partial_start(self.observed)))) or native

    @property
    def _blocking(self) -> list[str]:
        return [problem.text for problem in self.observed.problems if problem.blocks]

    @property
    def retries_failures(self) -> bool:
        return self.observed.is_retried

    def end_of(self, job_text: str) -> str:
        texts = self.meaning.text, _error_text(self.observed.message), *self._blocking
        return "\n".join(filter(None, texts))


def standing_of(observed: Observed, stored: StoredStatus | None) -> RunState:
    """The state of the run.

    Args:
        stored: the status in the storage, or None if it was not or could not be read.
    """
    job = RayJobState.of("", observed) if observed.rayjob is not None else None
    read = stored or StoredStatus()
    files = Files(
        "KubeRay",
        "",
        read.attempt,
        job_name=_JOB,
        is_of_job=observed.made(read),
        result=read.standing if read.of_result else None,
        live=read.state,
        cancelled=read.attempt is None,
        text=read.text if job is not None else "its RayJob is deleted: it saves and ends",
        are_read=stored is not None,
    )
    standing = run_state.standing_of(files, job, None, lambda: None if read.over else "its pods")
    is_failure = standing.of_result and standing.state == "failed"  # its result is not on this machine
    return replace(standing, text=read.text) if is_failure else standing


def _why_suspended(observed: Observed) -> Meaning:
    """Why the RayJob is suspended, with Kueue's messages."""
    if not observed.queue:
        text = "its RayJob is suspended by hand: spec.suspend is true, and it is in no queue"
        return Meaning("queued", "held", text)
    conditions, stored = observed.queue_conditions, []
    evicted, reserved = conditions.get("Evicted", {}), conditions.get("QuotaReserved", {})
    if evicted.get("status") == "True":
        stored.append(f"evicted ({evicted.get('reason')}): {evicted.get('message')}")
    if reserved.get("status") == "False":
        stored.append(f"{reserved.get('reason')}: {reserved.get('message')}")
    elif reserved.get("status") == "True":
        stored.append("admitted, it is about to start")
    summary = "; ".join(stored) or "Kueue has not processed it yet"
    place = f", {ordinal(observed.position)} in it" if observed.position is not None else ""
    text = f"waits in queue {observed.queue} of Kueue{place}: {summary}"
    return Meaning("queued", "scheduler", text)


def _partial_start(observed: Observed) -> str:
    """A line if some workers' pods hold a node while others wait for one, and the run is in no queue."""
    workers = [pod for pod in observed.pods if role_of(pod) == "worker" and not is_terminating(pod)]
    bound = sum(1 for pod in workers if node_of(pod))
    is_queued = not _QUEUE_LABELS.isdisjoint(mapping(observed.rayjob, "metadata", "labels"))
    is_starting = at(observed.rayjob, "status", "jobDeploymentStatus") == "Initializing"
    if is_queued or not is_starting or not 0 < bound < len(workers):
        return ""
    return (
        f"partial start: {bound} of {len(workers)} workers' pods hold nodes while the others wait for some. "
        "Two runs that wait for each other's nodes never start. A queue starts a run only as a whole: set "
        "kubernetes.queue, for Kueue or Volcano"
    )


def _error_text(message: str) -> str:
    """The error that the entrypoint printed, from a RayJob's message; else the message's first two lines."""
    errors = re.findall(r"^error: (.+(?:\n(?!\S*Traceback).+){0,2})", message, re.MULTILINE)
    if errors:
        return str(errors[-1])
    return "\n".join(line for line in message.splitlines()[:2] if line.strip())
