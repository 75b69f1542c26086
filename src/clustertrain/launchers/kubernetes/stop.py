"""Ending a run on Kubernetes from outside.

it trains       asked to save and end, by way of its head's pod; when it has, its RayJob is deleted
it waits        its RayJob is deleted at once; pods that there are save and end by themselves as they go
it is over      there is nothing to stop: its pods go by themselves after kubernetes.ttl

With the RayJob go its pods, its NetworkPolicies and its PodDisruptionBudget. Its ConfigMap stays, since the
pod that reads the storage later is made from it; so do the storage and its claim.
"""

from __future__ import annotations

from collections.abc import Callable

from clustertrain.errors import EXIT_JOB, JobError
from clustertrain.job.model import Job
from clustertrain.launchers.kubernetes.kubectl import Kubectl
from clustertrain.launchers.kubernetes.look import CLI, RAYJOBS, View, failed_there, look
from clustertrain.launchers.kubernetes.pod_problems import name_of
from clustertrain.launchers.kubernetes.render.paths import JOB_FILE
from clustertrain.launchers.kubernetes.render.pods import HEAD_CONTAINER, RUN_LABEL, grace_s

_BEYOND_GRACE_S = 90.0
_DELETED_WITH_IT = "networkpolicies.networking.k8s.io", "poddisruptionbudgets.policy"


def stop(job: Job, echo: Callable[[str], None], *, wait: bool = True) -> None:
    """Ask a run to finish its step, save and end, and delete its RayJob; one that waits is deleted.

    Args:
        wait: until it has ended; without it the RayJob stays, and says Failed after a while.

    Raises:
        JobError: nothing runs or waits.
        ClusterError: kubectl, or the cluster, says no.
    """
    kubectl = Kubectl.of(job.kubernetes)
    view = look(job, kubectl)
    if view.observed.rayjob is None or view.standing.over:
        where = "there is no RayJob" if view.observed.rayjob is None else "its pods go by themselves"
        raise JobError(
            f"{job.name} does not run: it is {view.standing.state}.\nThere is nothing to stop; {where}."
        )
    if not _has_attempt(view):
        echo(f"{view.line.splitlines()[0]}; there is nothing to save yet")
    elif view.observed.head is None:
        echo("its head's pod is away: the workers save as they go")
    else:
        _request_stop(view, kubectl, echo, wait)
        if not wait:
            return
    _delete(kubectl, job, echo)


def _has_attempt(view: View) -> bool:
    return view.standing.state in ("staging", "running") or (view.is_its and not view.standing.of_result)


def _request_stop(view: View, kubectl: Kubectl, echo: Callable[[str], None], wait: bool) -> None:
    head = name_of(view.observed.head or {})
    command = [*CLI, "stop", JOB_FILE, *([] if wait else ["--no-wait"])]
    timeout_s = grace_s(view.job) + _BEYOND_GRACE_S
    echo(f"asking it to save and end, by way of pod {head}")
    done = kubectl.exec(head, HEAD_CONTAINER, *command, timeout_s=timeout_s)
    for line in done.stdout.splitlines()[1:]:  # the first one names a process of the pod
        echo(line)
    if done.code == EXIT_JOB:
        echo("it ended before it was asked")
    elif done.code:
        raise failed_there(done.code, done.stderr)


def _delete(kubectl: Kubectl, job: Job, echo: Callable[[str], None]) -> None:
    """Its pods are given their grace time, so it takes until then."""
    kubectl.delete(RAYJOBS, job.name, grace_s(job) + _BEYOND_GRACE_S)
    for kind in _DELETED_WITH_IT:
        kubectl("delete", kind, f"--selector={RUN_LABEL}={job.name}", "--wait=false")
    echo(f"RayJob {job.name} is deleted; its storage stays")
