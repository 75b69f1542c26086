"""What `status` and `ls` print of runs on Kubernetes."""

from __future__ import annotations

import time
from dataclasses import replace

from clustertrain.launchers.kubernetes.cluster.kubectl import Kubectl
from clustertrain.launchers.kubernetes.observed.pods import name_of
from clustertrain.launchers.kubernetes.observed.state import Observed, standing_of
from clustertrain.launchers.kubernetes.observed.view import RAYJOBS, View
from clustertrain.launchers.kubernetes.scheduler import OUR_LABEL, SCHEDULER, place_of
from clustertrain.node.units import time_text
from clustertrain.observe.run_table import RunRow
from clustertrain.observe.status import Row
from clustertrain.observe.status_json import StoredStatus

_OWN_ROWS = ("run", "state", "attempt", "runs as", "text", "note", "failed", "lost")
_LAST_ROWS = ("folder", "used")


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


def rows_in(kubectl: Kubectl) -> list[RunRow]:
    """Return a row of `ls` for each of clustertrain's RayJobs in a namespace; their storage is not read.

    Raises:
        ClusterError: kubectl failed, or the cluster refused a request.
    """
    rows = []
    for rayjob in sorted(kubectl.list(RAYJOBS, OUR_LABEL), key=name_of):
        observed = Observed(rayjob)
        age = time_text(time.time() - observed.created_at)
        cluster = rayjob.get("status", {}).get("rayClusterStatus", {})
        ready, desired = cluster.get("readyWorkerReplicas", 0), cluster.get("desiredWorkerReplicas", 0)
        text = f"{observed.summary}, {ready}/{desired} workers' pods, age {age}"
        there = replace(kubectl, namespace=rayjob["metadata"]["namespace"])
        where = " ".join([SCHEDULER.label, *(f"{key} {value}" for key, value in place_of(there).items())])
        state = "running" if observed.native.phase == "runs" else standing_of(observed, None).state
        rows.append(RunRow(name_of(rayjob), state, where=where, text=text))
    return rows
