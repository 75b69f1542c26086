"""Reads the state of a run from the cluster.

The storage is on a volume of the cluster, or on S3, which may be unreachable from this machine. So the head's
pod reads it while that pod runs, and afterwards a short-lived pod of the same image does.

    RayJob ─▶ pods ─▶ events, if a pod does not run ─▶ Kueue's workload, if the run is queued ─▶ the storage
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from clustertrain.errors import ClusterError, ClusterTrainError, JobError
from clustertrain.job.file import load_job
from clustertrain.job.model import Job
from clustertrain.job.site import read_site, site_path, with_site
from clustertrain.launchers.kubernetes.cluster.kubectl import Kubectl, words_of
from clustertrain.launchers.kubernetes.observed.pods import Object, is_well, name_of, role_of, time_of
from clustertrain.launchers.kubernetes.observed.run_storage import RunStorage
from clustertrain.launchers.kubernetes.observed.state import Observed, standing_of
from clustertrain.launchers.kubernetes.render.paths import JOB_FILE
from clustertrain.launchers.kubernetes.render.pods import RUN_LABEL
from clustertrain.launchers.kubernetes.section import Kubernetes
from clustertrain.launchers.shell import Unanswered
from clustertrain.observe.run_state import RunState
from clustertrain.observe.status_json import StoredStatus
from clustertrain.run_files.command_line import CommandLine

RAYJOBS, WORKLOADS = "rayjobs.ray.io", "workloads.kueue.x-k8s.io"
_STATUS = ("status", "--json", "--to", "local", JOB_FILE)
_EXEC_S = 60.0


@dataclass(frozen=True)
class View:
    """A run at one moment. `notes`: one line for each thing that could not be read."""

    job: Job
    observed: Observed
    stored: StoredStatus | None
    notes: tuple[str, ...] = ()

    @cached_property
    def standing(self) -> RunState:
        return standing_of(self.observed, self.stored)


def read_view(job: Job, *, existed: bool = False) -> View:
    """Read the state of a run from the cluster and the storage.

    Args:
        job: merged with the site file.
        existed: the run was submitted, and may have been deleted.

    Raises:
        JobError: it has no RayJob, and no attempt in its storage.
        ClusterError: kubectl failed, or the cluster refused a request; or it has no RayJob, and its storage
            could not be read.
    """
    notes: list[str] = []
    observed = observe_run(job, notes)
    stored = _read_storage(job, observed, notes)
    if observed.rayjob is None and not existed:
        _check_exists(job, stored, notes)
    return View(job, observed, stored, tuple(notes))


def _check_exists(job: Job, stored: StoredStatus | None, notes: Sequence[str]) -> None:
    if stored is not None and stored.attempt is not None:
        return
    namespace = job.section(Kubernetes).namespace
    where = f"namespace {namespace}" if namespace else "the context's namespace"
    start = f"`{CommandLine('submit --to kubernetes')}` starts it."
    if stored is None:
        why = "; ".join(notes)
        raise ClusterError(f"{job.name} has no RayJob in {where}, and {why}\nIf it never ran there, {start}")
    raise JobError(
        f"There is no run {job.name} in {where}: it has no RayJob, and no attempt in its storage.\n{start}"
    )


def observe_run(job: Job, notes: list[str]) -> Observed:
    """Read the objects of a run from the cluster, without its storage.

    Events and Kueue's Workload are optional: if they cannot be read, `notes` gets a line.

    Raises:
        ClusterError: kubectl failed, or the cluster refused a request.
    """
    kubectl = Kubectl.of(job)
    if (rayjob := kubectl.find(RAYJOBS, job.name)) is None:
        return Observed(None)
    alone = Observed(rayjob)
    pods = tuple(pod for pod in kubectl.list("pods", f"{RUN_LABEL}={job.name}") if _is_of(pod, alone))
    observed = Observed(rayjob, pods)
    if observed.is_missing_pods or not all(map(is_well, pods)):
        names = {name_of(rayjob), *map(name_of, pods), observed.ray_cluster}
        events = [each for each in _listed(kubectl, "events", notes) if {"reason", "message"} <= each.keys()]
        own = [each for each in events if each["involvedObject"].get("name") in names]
        since = tuple(each for each in own if time_of(each) >= observed.created_at)
        observed = replace(observed, events=since)
    if observed.queue and observed.native.is_waiting:
        uid = rayjob["metadata"]["uid"]
        workloads = (each for each in _listed(kubectl, WORKLOADS, notes) if uid in _owners(each))
        observed = replace(observed, workload=next(workloads, None))
    return observed


def _listed(kubectl: Kubectl, kind: str, notes: list[str]) -> Sequence[Object]:
    """Return the objects of a kind; if kubectl fails, such as without permission, add a line to `notes`."""
    try:
        return kubectl.list(kind)
    except Unanswered:
        raise
    except ClusterError as error:
        notes.append(words_of(error))
        return ()


def _is_of(pod: Object, observed: Observed) -> bool:
    """Return whether a pod is of the current Ray cluster; pods of an earlier one may still be terminating."""
    cluster = pod["metadata"].get("labels", {}).get("ray.io/cluster")
    return role_of(pod) != "reader" and cluster in (None, observed.ray_cluster)


def _owners(thing: Object) -> list[str]:
    return [str(owner["uid"]) for owner in thing["metadata"].get("ownerReferences", ())]


# ----------------------------------------------------------------------------------------------- the storage


def _read_storage(job: Job, observed: Observed, notes: list[str]) -> StoredStatus | None:
    """Read the status in the storage from a pod.

    Return None if no pod could read it, with a note if the reading failed.
    """
    head, reads_without = observed.head, observed.rayjob is None or observed.is_over
    why = ""
    for pod in (*([head] if head is not None else []), *([None] if reads_without else [])):
        try:
            printed = RunStorage(job, pod).run(*_STATUS, timeout_s=_EXEC_S)
        except Unanswered:
            raise
        except ClusterTrainError as error:  # of a head: it is gone by now, or has no Python
            why = words_of(error)
            continue
        if (stored := StoredStatus.parsed(printed)) is not None:
            return stored
        why = "the pod printed no status"
    if why:
        notes.append(f"the storage was not read: {why}")
    return None


def kubectl_for(job_file: str | None, namespace: str | None) -> Kubectl:
    """Return kubectl for the cluster and namespace of a job file; without one, of the site file."""
    if job_file is not None:
        section = with_site(load_job(Path(job_file))).section(Kubernetes)
    else:
        site = site_path()
        section = Kubernetes() if site is None else read_site(site, os.environ).section(Kubernetes)
    return Kubectl(namespace or section.namespace, section.context)
