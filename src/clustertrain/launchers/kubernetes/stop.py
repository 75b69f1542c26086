"""Stops a run on Kubernetes.

the run trains      a request through its head's pod: save and end; then its RayJob is deleted
the run waits       its RayJob is deleted at once; existing pods save before they end (preStop)
the run is over     there is nothing to stop: its pods go, the head's after kubernetes.ttl

Pods, ConfigMap, NetworkPolicies and PodDisruptionBudget are deleted with the RayJob, also those that have no
owner because `kubectl apply` created them. The storage and its claim stay.
"""

from __future__ import annotations

from collections.abc import Callable

from clustertrain.errors import EXIT_JOB, JobError
from clustertrain.job.model import Job
from clustertrain.launchers.kubernetes.cluster.kubectl import Kubectl
from clustertrain.launchers.kubernetes.observed.pod_problems import name_of
from clustertrain.launchers.kubernetes.observed.view import (
    CLI,
    RAYJOBS,
    View,
    error_from_pod,
    view_of_existing,
)
from clustertrain.launchers.kubernetes.render.paths import JOB_FILE
from clustertrain.launchers.kubernetes.render.pods import HEAD_CONTAINER, RUN_LABEL, grace_s
from clustertrain.launchers.kubernetes.section import Kubernetes

_BEYOND_GRACE_S = 90.0
_DELETED_WITH_IT = "configmaps", "networkpolicies.networking.k8s.io", "poddisruptionbudgets.policy"


def stop(job: Job, echo: Callable[[str], None], *, wait: bool = True) -> None:
    """Request that a run finishes its step, saves and ends; then delete its RayJob.

    The RayJob of a run that only waits is deleted at once.

    Args:
        wait: wait until the run has ended. If False, the RayJob stays, and becomes Failed after a while.

    Raises:
        JobError: the run is over, or has no RayJob.
        ClusterError: kubectl failed, or the cluster refused a request.
    """
    kubectl = Kubectl.of(job.section(Kubernetes))
    view = view_of_existing(job, kubectl)
    if view.observed.rayjob is None or view.standing.over:
        why = "it has no RayJob" if view.observed.rayjob is None else "its pods end by themselves"
        raise JobError(f"{job.name}: {view.line.splitlines()[0]}\nThere is nothing to stop: {why}.")
    if not _has_attempt(view):
        echo(f"{view.line.splitlines()[0]}; there is nothing to save yet")
    elif view.observed.head is None:
        echo("its head's pod does not run: the workers save before their pods end")
    else:
        _request_stop(view, kubectl, echo, wait)
        if not wait:
            return
    delete_run(kubectl, job.name, grace_s(job) + _BEYOND_GRACE_S)
    echo(f"RayJob {job.name} is deleted; its storage stays")


def _has_attempt(view: View) -> bool:
    if view.stored is None and view.last is not None:
        return not view.last.stored.of_result
    return view.standing.state in ("staging", "running") or (
        view.made_newest_attempt and not view.standing.of_result
    )


def _request_stop(view: View, kubectl: Kubectl, echo: Callable[[str], None], wait: bool) -> None:
    head = name_of(view.observed.head or {})
    command = [*CLI, "stop", JOB_FILE, *([] if wait else ["--no-wait"])]
    timeout_s = grace_s(view.job) + _BEYOND_GRACE_S
    echo(f"requesting a save and a stop through pod {head}")
    done = kubectl.exec(head, HEAD_CONTAINER, *command, timeout_s=timeout_s)
    for line in done.stdout.splitlines()[1:]:  # the first line names a process of the pod
        echo(line)
    if done.code == EXIT_JOB:
        echo("it ended before the request")
    elif done.code:
        raise error_from_pod(done.code, done.stderr)


def delete_run(kubectl: Kubectl, name: str, timeout_s: float) -> None:
    """Delete a RayJob and the objects that belong to it. This may take the grace period of its pods."""
    kubectl.delete(RAYJOBS, name, timeout_s)
    for kind in _DELETED_WITH_IT:
        kubectl("delete", kind, f"--selector={RUN_LABEL}={name}", "--wait=false")
