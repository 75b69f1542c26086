"""The state of a RayJob, from its status, queue, pods and events, and of its run.

The functions are pure. Pods and events show why a run does not start.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from clustertrain.errors import EXIT_CLUSTER, EXIT_DONE, EXIT_FAILED, EXIT_JOB
from clustertrain.launchers.kubernetes.observed.pods import (
    Object,
    at,
    has_running_containers,
    is_running,
    is_terminating,
    items,
    mapping,
    role_of,
    seconds,
    troubles,
)
from clustertrain.launchers.scheduler import run_state
from clustertrain.launchers.scheduler.interface import Phase, State
from clustertrain.launchers.scheduler.run_state import Files
from clustertrain.observe.run_state import RunState
from clustertrain.observe.status_json import StoredStatus

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_SUMMARY = ("jobDeploymentStatus", "jobStatus", "reason")
_JOB = "its RayJob"
_CLOCK_SKEW_S = 5.0  # the clocks of a pod and of the API server may differ by this much
_MESSAGE_LINES = 3  # of Ray's message: its end is what the entrypoint printed last

# By the jobDeploymentStatus of KubeRay, of a RayJob that is not over.
LIVE: Mapping[str, tuple[Phase, str]] = {
    "": ("waits", "the KubeRay operator has not processed it yet"),
    "Initializing": ("starts", "its pods are starting"),
    "Running": ("runs", ""),
    "Suspending": ("waits", ""),
    "Suspended": ("waits", ""),
}
_OVER = ("Complete", "Failed", "ValidationFailed")
# By the reason, jobDeploymentStatus or jobStatus of a RayJob that is over. The first that is here counts.
ENDS: Mapping[str, tuple[Phase, str, int | None]] = {
    "SubmissionFailed": ("ended", "its job could not be submitted to Ray", EXIT_CLUSTER),
    "DeadlineExceeded": ("timed out", "reached kubernetes.deadline", None),
    "PreRunningDeadlineExceeded": (
        "ended",
        "its pods did not start within kubernetes.start_deadline; the events of the namespace say why",
        EXIT_CLUSTER,
    ),
    "ValidationFailed": ("ended", "the KubeRay operator refuses it", EXIT_JOB),
    "SUCCEEDED": ("ended", "", EXIT_DONE),
    "STOPPED": ("cancelled", "its job was stopped in Ray", None),
    "FAILED": ("ended", "failed", EXIT_FAILED),
    "AppFailed": ("ended", "failed", EXIT_FAILED),
}
_SUBMITTED: tuple[Phase, str] = "starts", "its pods run, and its job is being submitted to Ray"
_UNKNOWN: tuple[Phase, str] = "starts", "is in a state that is unknown to this version of clustertrain"
_NO_REASON: tuple[Phase, str, None] = "ended", "ended, and KubeRay reports no reason", None


def native_of(deployment: str, job: str, reason: str) -> tuple[Phase, str, int | None]:
    """Return the phase, why, and the exit code of KubeRay's words.

    An unknown state, of a later KubeRay, counts as not over.
    """
    if deployment in _OVER:
        return next((ENDS[word] for word in (reason, deployment, job) if word in ENDS), _NO_REASON)
    if deployment == "Running" and job in ("", "PENDING"):
        return *_SUBMITTED, None
    return *LIVE.get(deployment, _UNKNOWN), None


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
    def status(self) -> Mapping[str, Any]:
        return mapping(self.rayjob, "status")

    @property
    def native(self) -> State:
        """The state by the RayJob and its queue alone, without pods and events."""
        phase, why, code = native_of(*self.words)
        if self.words[0] in ("Suspending", "Suspended"):
            words = f": {self.queue_words}" if self.queue_words else ""
            why = f"waits in queue {self.queue} of Kueue{words}"
            if not self.queue:
                phase, why = "held", "suspended by hand: spec.suspend is true, and it is in no queue"
        # The exit code of the entrypoint, which Ray puts into its message.
        if code == EXIT_FAILED and (found := re.search(r"exit code (\d+)", str(self.status.get("message")))):
            code = int(found[1])
        return State(self.summary, phase, why, code=code, goes_on=True)

    @property
    def words(self) -> tuple[str, str, str]:
        deployment, job, reason = (str(self.status.get(key, "")) for key in _SUMMARY)
        if not deployment and at(self.rayjob, "spec", "suspend"):
            deployment = "Suspended"  # the operator will set it
        return deployment, job, reason

    @property
    def is_refused(self) -> bool:
        """Whether the operator refuses the RayJob."""
        return "ValidationFailed" in self.words

    @property
    def summary(self) -> str:
        """The state in KubeRay's terms: `Running, RUNNING`."""
        return ", ".join(str(self.status[key]) for key in _SUMMARY if self.status.get(key)) or "new"

    @property
    def ray_cluster(self) -> str:
        return str(self.status.get("rayClusterName", ""))

    @property
    def is_over(self) -> bool:
        """Whether the operator is done with the RayJob."""
        return self.rayjob is not None and self.words[0] in _OVER

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
        deployment = self.status.get("jobDeploymentStatus")
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


def state_of(observed: Observed) -> State:
    """Return the state of a RayJob, with why its pods do not run, or what it said at its end."""
    state = observed.native
    if observed.words[0] == "Running" and observed.head is None:
        state = replace(state, phase="starts", why="its head's pod does not run")
    if state.is_waiting:
        return state
    if state.is_over:
        message = str(observed.status.get("message") or "").splitlines()[-_MESSAGE_LINES:]
        return replace(state, why="\n".join(filter(None, (state.why, *message, *observed.troubles))))
    return replace(state, why="\n".join(observed.troubles) or state.why)


def standing_of(observed: Observed, stored: StoredStatus | None) -> RunState:
    """Return the state of the run.

    Args:
        stored: the status in the storage, or None if it was not or could not be read.
    """
    job = state_of(observed) if observed.rayjob is not None else None
    read = stored or StoredStatus()
    files = Files(
        _JOB,
        attempt=read.attempt,
        is_of_job=observed.made(read),
        result=read.standing if read.of_result else None,
        live=read.state,
        cancelled=read.attempt is None,
        text=read.text if job is not None else "its RayJob is deleted: it saves and ends",
        are_read=stored is not None,
    )
    one_line = replace(job, why=job.why.partition("\n")[0]) if job is not None and job.is_over else job
    standing = run_state.standing_of(files, one_line, None, lambda: None if read.over else "its pods")
    if standing.of_result and standing.state == "failed":  # its result is not on this machine
        return replace(standing, text=read.text)
    if job is not None and job.is_over and job.code != EXIT_DONE and not standing.of_result:
        return replace(standing, text=job.why)
    return standing
