"""The state of a RayJob, from its status, queue, pods and events, as scheduler/run_state.py needs it.

The functions are pure. Pods and events show why a run does not start.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from clustertrain.launchers.kubernetes.observed.fields import at, items, mapping
from clustertrain.launchers.kubernetes.observed.pods import (
    Object,
    has_running_containers,
    is_running,
    is_terminating,
    role_of,
    seconds,
    troubles,
)
from clustertrain.launchers.scheduler import run_state
from clustertrain.launchers.scheduler.interface import JobState, Meaning
from clustertrain.launchers.scheduler.run_state import Files
from clustertrain.observe.run_state import RunState
from clustertrain.observe.status_json import StoredStatus
from clustertrain.run.states import CAUSE_OF_CODE, STATES

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_SUMMARY = ("jobDeploymentStatus", "jobStatus", "reason")
_JOB = "its RayJob"
_CLOCK_SKEW_S = 5.0  # the clocks of a pod and of the API server may differ by this much
_MESSAGE_LINES = 3  # of Ray's message: its end is what the entrypoint printed last

# By the jobDeploymentStatus of KubeRay, of a RayJob that is not over.
LIVE: Mapping[str, Meaning] = {
    "": Meaning("queued", "scheduler", "the KubeRay operator has not processed it yet"),
    "Initializing": Meaning("waiting", "nodes", "its pods are starting"),
    "Running": Meaning("running", "training", "runs"),
    "Suspending": Meaning("queued", "requeued", "is being suspended: its pods are deleted"),
    "Suspended": Meaning("queued", "scheduler", "is suspended"),
}
_OVER = ("Complete", "Failed", "ValidationFailed")
# By the reason, jobDeploymentStatus or jobStatus of a RayJob that is over. The first that is here counts.
ENDS: Mapping[str, Meaning] = {
    "SubmissionFailed": Meaning("failed", "cluster", "its job could not be submitted to Ray"),
    "DeadlineExceeded": Meaning("lost", "time_limit", "reached kubernetes.deadline"),
    "PreRunningDeadlineExceeded": Meaning(
        "failed",
        "cluster",
        "its pods did not start within kubernetes.start_deadline; the events of the namespace say why",
    ),
    "ValidationFailed": Meaning("failed", "job", "the KubeRay operator refuses it"),
    "SUCCEEDED": Meaning("done", "finished", "succeeded", "succeeded"),
    "STOPPED": Meaning("cancelled", "cancelled", "its job was stopped in Ray"),
    "FAILED": Meaning("failed", "error", "failed"),
    "AppFailed": Meaning("failed", "error", "failed"),
}
_SUBMITTED = Meaning("waiting", "workers", "its pods run, and its job is being submitted to Ray")
_UNKNOWN = Meaning("waiting", "nodes", "is in a state that is unknown to this version of clustertrain")
_NO_REASON = Meaning("lost", "vanished", "ended, and KubeRay reports no reason")


def native_of(deployment: str, job: str, reason: str) -> Meaning:
    """Return the meaning of KubeRay's words; an unknown state, of a later KubeRay, counts as not over."""
    if deployment in _OVER:
        return next((ENDS[word] for word in (reason, deployment, job) if word in ENDS), _NO_REASON)
    if deployment == "Running" and job in ("", "PENDING"):
        return _SUBMITTED
    return LIVE.get(deployment, _UNKNOWN)


@dataclass(frozen=True)
class Observed:
    """The objects of a run in the cluster, at one moment.

    Attributes:
        rayjob: None if it does not exist.
        pods: of the run, including those that are terminating.
        events: of the objects of the run.
        workload: Kueue's Workload of the RayJob, or None if none exists or none could be read.
    """

    rayjob: Object | None
    pods: tuple[Object, ...] = ()
    events: tuple[Object, ...] = ()
    workload: Object | None = None

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
        return self.native is LIVE["Suspended"]

    @property
    def summary(self) -> str:
        """The state in KubeRay's terms: `Running, RUNNING`."""
        return ", ".join(str(self._status[key]) for key in _SUMMARY if self._status.get(key)) or "new"

    @property
    def message(self) -> str:
        """The last words of KubeRay or Ray about the end."""
        return "\n".join(str(self._status.get("message") or "").splitlines()[-_MESSAGE_LINES:])

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
    def queue_words(self) -> str:
        """Why Kueue does not run the RayJob, in its words; empty if it said nothing."""
        told = [
            f"{each['reason']}: {each['message']}"
            for each in items(self.workload, "status", "conditions")
            if (each["type"], each["status"]) in (("Evicted", "True"), ("QuotaReserved", "False"))
        ]
        return "; ".join(told)

    @property
    def created_at(self) -> float:
        created = at(self.rayjob, "metadata", "creationTimestamp")
        return seconds(created) if created else 0.0

    def made(self, stored: StoredStatus) -> bool:
        """Return whether this RayJob made the newest attempt, not an earlier RayJob of the same name."""
        return stored.attempt is not None and stored.began_at >= self.created_at - _CLOCK_SKEW_S

    @property
    def head(self) -> Object | None:
        """The head's pod, or None if it does not run.

        After the end it is terminating, for kubernetes.ttl.
        """
        runs = has_running_containers if self.is_over else is_running
        return next((pod for pod in self.pods if role_of(pod) == "head" and runs(pod)), None)

    @property
    def _workers(self) -> int:
        """How many pods of workers should exist."""
        groups = items(self.rayjob, "spec", "rayClusterSpec", "workerGroupSpecs")
        return sum(int(group.get("replicas") or 0) for group in groups)

    @property
    def is_missing_pods(self) -> bool:
        """Whether pods do not exist that the operator should have created by now."""
        deployment = self._status.get("jobDeploymentStatus")
        of_ray = {"Initializing": 1, "Running": 2}.get(str(deployment))  # the head, then the submitter
        there = [pod for pod in self.pods if not is_terminating(pod)]
        return of_ray is not None and len(there) < of_ray + self._workers

    @cached_property
    def troubles(self) -> list[str]:
        return troubles(self.pods, self.events, missing=self.is_missing_pods)

    @property
    def pods_text(self) -> str:
        """The pods in one line: `head runs, 1 of 2 workers run`."""
        there = [pod for pod in self.pods if not is_terminating(pod)]
        head, workers = ([pod for pod in there if role_of(pod) == role] for role in ("head", "worker"))
        how = "has no pod" if not head else "runs" if is_running(head[0]) else "does not run yet"
        run, of = sum(map(is_running, workers)), max(self._workers, len(workers))
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
        message = str(at(self.observed.rayjob, "status", "message") or "")
        if native.cause == "error" and (code := re.search(r"exit code (\d+)", message)):
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
        return "\n".join(self.observed.troubles) or native

    def end_of(self, job_text: str) -> str:
        return "\n".join(filter(None, (self.meaning.text, self.observed.message, *self.observed.troubles)))


def standing_of(observed: Observed, stored: StoredStatus | None) -> RunState:
    """Return the state of the run.

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
    """Return why the RayJob is suspended, in Kueue's words."""
    if not observed.queue:
        text = "its RayJob is suspended by hand: spec.suspend is true, and it is in no queue"
        return Meaning("queued", "held", text)
    words = f": {observed.queue_words}" if observed.queue_words else ""
    return Meaning("queued", "scheduler", f"waits in queue {observed.queue} of Kueue{words}")
