"""What the cluster says first of a run that was just applied.

The scheduler, a quota, a policy, a queue and the operator decide only now, within seconds, and in their own
words. A run that waits is not a failed submission: it may start later.
"""

from __future__ import annotations

from clustertrain.errors import ClusterError, JobError
from clustertrain.job.model import Job
from clustertrain.launchers.kubernetes.cluster.kubectl import words_of
from clustertrain.launchers.kubernetes.observed.pods import is_terminating, node_of
from clustertrain.launchers.kubernetes.observed.state import Observed, standing_of
from clustertrain.launchers.kubernetes.observed.view import observe_run
from clustertrain.node.waiting import wait_until

_WITHIN_S = 10.0
_POLL_S = 1.0


def first_word(job: Job) -> str:
    """Wait at most 10 s for the cluster's report whether the pods of the run get nodes, and return it.

    Raises:
        JobError: the operator refuses the RayJob.
    """
    try:
        found = wait_until(lambda: _said(job, observe_run(job, [])), _WITHIN_S, _POLL_S)
    except ClusterError as error:  # the run was applied, and does not depend on this
        return f"note: whether its pods start was not read: {words_of(error)}"
    except KeyboardInterrupt:  # nor on the wait for it
        return "note: it was applied, and what the cluster says of its pods was not waited for"
    return found or f"note: the cluster has said nothing of its pods within {_WITHIN_S:g} s"


def _said(job: Job, observed: Observed) -> str:
    """Return what the cluster reports about the pods, or an empty text."""
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
