"""Stops a run on Kubernetes.

the run trains      a request through its head's pod: save and end; then its RayJob is deleted
the run waits       its RayJob is deleted at once; existing pods save before they end (preStop)
the run is over     there is nothing to stop: its pods go, the head's after kubernetes.ttl

Pods, ConfigMap, NetworkPolicies and PodDisruptionBudget are deleted with the RayJob, also those that have no
owner because `kubectl apply` created them. The storage and its claim stay.
"""

from __future__ import annotations

from collections.abc import Callable

from clustertrain.errors import JobError
from clustertrain.job.model import Job
from clustertrain.launchers.kubernetes.cluster.kubectl import Kubectl
from clustertrain.launchers.kubernetes.observed.pod_problems import name_of
from clustertrain.launchers.kubernetes.observed.run_storage import RunStorage
from clustertrain.launchers.kubernetes.observed.view import RAYJOBS, View, view_of_existing
from clustertrain.launchers.kubernetes.render.paths import JOB_FILE
from clustertrain.launchers.kubernetes.render.pods import RUN_LABEL, grace_s
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
        raise JobError(f"{job.name}: {view.standing.line.splitlines()[0]}\nThere is nothing to stop: {why}.")
    if not _has_attempt(view):
        echo(f"{view.standing.line.splitlines()[0]}; there is nothing to save yet")
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
    storage = RunStorage(view.job, kubectl, view.observed.head)
    echo(f"requesting a save and a stop through pod {name_of(view.observed.head or {})}")
    command = ["stop", JOB_FILE, *([] if wait else ["--no-wait"])]
    try:
        printed = storage.printed(*command, timeout_s=grace_s(view.job) + _BEYOND_GRACE_S)
    except JobError:
        echo("it ended before the request")
        return
    for line in printed.splitlines()[1:]:  # the first line names a process of the pod
        echo(line)


def delete_run(kubectl: Kubectl, name: str, timeout_s: float) -> None:
    """Delete a RayJob and the objects that belong to it. This may take the grace period of its pods."""
    kubectl.delete(RAYJOBS, name, timeout_s)
    for kind in _DELETED_WITH_IT:
        kubectl("delete", kind, f"--selector={RUN_LABEL}={name}", "--wait=false")
