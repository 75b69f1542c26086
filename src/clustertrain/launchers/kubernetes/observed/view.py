"""Reads the state of a run from the cluster, and what `status` prints of it.

The storage is on a volume of the cluster, or on S3, which may be unreachable from this machine. So the head's
pod reads it while that pod runs, and afterwards a short-lived pod of the same image does.

    RayJob ─▶ pods ─▶ events, if a pod does not run ─▶ Kueue's workload, if the run is queued ─▶ the storage
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from clustertrain.errors import ClusterError, ClusterTrainError, JobError
from clustertrain.job.model import Job
from clustertrain.launchers.kubernetes.cluster.kubectl import Kubectl, words_of
from clustertrain.launchers.kubernetes.observed.pods import (
    Object,
    is_terminating,
    is_well,
    name_of,
    node_of,
    role_of,
    time_of,
)
from clustertrain.launchers.kubernetes.observed.run_storage import RunStorage
from clustertrain.launchers.kubernetes.observed.state import Observed, standing_of
from clustertrain.launchers.kubernetes.render.paths import JOB_FILE
from clustertrain.launchers.kubernetes.render.pods import RUN_LABEL
from clustertrain.launchers.kubernetes.section import Kubernetes
from clustertrain.launchers.shell import Unanswered
from clustertrain.node.waiting import wait_until
from clustertrain.observe.run_state import RunState
from clustertrain.observe.status import Row
from clustertrain.observe.status_json import StoredStatus
from clustertrain.run_files.command_line import CommandLine

RAYJOBS, WORKLOADS = "rayjobs.ray.io", "workloads.kueue.x-k8s.io"
_STATUS = ("status", "--json", "--to", "local", JOB_FILE)
_EXEC_S = 60.0
FIRST_WORD_S, FIRST_WORD_POLL_S = 10.0, 1.0
_OWN_ROWS = ("run", "state", "attempt", "runs as", "text", "note", "failed", "lost")
_LAST_ROWS = ("folder", "used")


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
        workloads = (
            each
            for each in _listed(kubectl, WORKLOADS, notes)
            if uid in [owner["uid"] for owner in each["metadata"].get("ownerReferences", ())]
        )
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


# ------------------------------------------------------------------------------------------------ as a table


def status_rows(view: View) -> list[Row]:
    """Return the rows of `status`; a failure, or a problem that blocks the run, comes first."""
    standing, stored, observed = view.standing, view.stored, view.observed
    name = next((text for row, text in (stored.rows if stored else ()) if row == "run"), view.job.name)
    of_storage: list[Row] = []
    if stored is not None:
        is_current = observed.made(stored) or standing.of_result or observed.rayjob is None
        rows_there = [row for row in stored.rows if row[0] not in _OWN_ROWS]
        of_storage = [row for row in rows_there if is_current or row[0] == "folder"]
    rows = [("run", name), ("state", standing.name), *(row for row in of_storage if row[0] not in _LAST_ROWS)]
    rows += [("attempt", _attempt_text(view)), *_cluster_rows(view)]
    rows += [("note", note) for note in view.notes]
    rows += [row for row in of_storage if row[0] in _LAST_ROWS]
    if not standing.text:
        return rows
    if standing.state in ("failed", "lost") or observed.troubles:
        return [(standing.state, standing.text), *rows]
    rows[1] = ("state", standing.line)
    return rows


def _attempt_text(view: View) -> str:
    stored, observed = view.stored, view.observed
    if stored is None:
        if observed.head is None and not observed.is_over:
            return "not readable now: its head's pod does not run"
        return "unknown: the storage was not read"
    if stored.attempt is None:
        return "none yet"
    ended = f", which ended as {stored.state} ({stored.cause})" if stored.of_result else ""
    earlier = "" if observed.made(stored) else ", of an earlier RayJob"
    return str(stored.attempt) + earlier + ("" if view.standing.of_result else ended)


def _cluster_rows(view: View) -> list[Row]:
    observed = view.observed
    if observed.rayjob is None:
        return [("RayJob", "none: it was deleted")]
    metadata = observed.rayjob["metadata"]
    rows = [("RayJob", f"{metadata['name']} in namespace {metadata['namespace']}: {observed.summary}")]
    if not observed.is_over:
        rows.append(("pods", observed.pods_text))
    return rows


def status_of(view: View) -> StoredStatus:
    """Return the status in the storage with the standing in the cluster."""
    stored, standing = view.stored or StoredStatus(), view.standing
    return replace(
        stored,
        state=standing.state,
        cause=standing.cause,
        text=standing.text,
        over=standing.over,
        of_result=standing.of_result,
        exit_code=stored.exit_code if standing.of_result else standing.exit_code,
        rows=tuple(status_rows(view)),
    )


# ----------------------------------------------------------------------------- of a run that was just applied


def first_word(job: Job) -> str:
    """Wait at most 10 s for the cluster's report whether the pods of the run get nodes, and return it.

    Raises:
        JobError: the operator refuses the RayJob.
    """
    try:
        found = wait_until(lambda: _said(job, observe_run(job, [])), FIRST_WORD_S, FIRST_WORD_POLL_S)
    except ClusterError as error:  # the run was applied, and does not depend on this
        return f"note: whether its pods start was not read: {words_of(error)}"
    except KeyboardInterrupt:  # nor on the wait for it
        return "note: it was applied, and what the cluster says of its pods was not waited for"
    return found or f"note: the cluster has said nothing of its pods within {FIRST_WORD_S:g} s"


def _said(job: Job, observed: Observed) -> str:
    """Return what the cluster reports about the pods, or an empty text.

    The scheduler, a quota, a policy, a queue and the operator decide only now, within seconds, and in their
    own words. A run that waits is not a failed submission: it may start later.
    """
    standing = standing_of(observed, None)
    if observed.is_refused:
        remedy = "Correct it in the job file: the next submit replaces this RayJob."
        raise JobError(f"RayJob {job.name} was applied, and {standing.text}\n{remedy}")
    there = [pod for pod in observed.pods if not is_terminating(pod)]
    if there and all(map(node_of, there)) and not observed.is_missing_pods:
        return f"all {len(there)} pods are scheduled"
    warns = any(event.get("type") == "Warning" for event in observed.events)
    says = observed.is_over or standing.cause == "held" or observed.queue_words or warns
    return standing.line if says else ""
