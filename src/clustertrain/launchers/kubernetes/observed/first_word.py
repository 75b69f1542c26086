"""What the cluster says first of a run that was just applied.

The scheduler, a quota, a policy, a queue and the operator decide only now, within seconds, and in their own
words. A run that waits is not a failed submission: it may start later.
"""

from __future__ import annotations

import re

from clustertrain.errors import ClusterError, JobError
from clustertrain.job.model import Job
from clustertrain.launchers.kubernetes.cluster.job_keys import keys_sentence
from clustertrain.launchers.kubernetes.observed.pod_problems import is_terminating, node_of
from clustertrain.launchers.kubernetes.observed.state import Observed, standing_of
from clustertrain.launchers.kubernetes.observed.view import observe_run
from clustertrain.launchers.kubernetes.render.amounts import counted
from clustertrain.waiting import wait_until

_WITHIN_S = 10.0
_POLL_S = 1.0


def first_word(job: Job) -> str:
    """Wait until the cluster says whether the pods of the run get nodes, at most 10 s. Return that.

    Raises:
        JobError: the operator refuses the RayJob.
    """

    def said() -> str:
        return _said(job, observe_run(job, []))

    try:
        found = wait_until(said, _WITHIN_S, _POLL_S)
    except ClusterError as error:  # the run was applied, and does not depend on this
        return f"note: whether its pods start was not read: {str(error).splitlines()[0]}"
    return found or f"note: the cluster has said nothing of its pods within {_WITHIN_S:g} s"


def _said(job: Job, observed: Observed) -> str:
    """What the cluster says of the pods, or an empty text."""
    standing = standing_of(observed, None)
    if observed.is_over and observed.native.cause == "job":
        remedy = "Correct it in the job file: the next submit replaces this RayJob."
        raise JobError(f"RayJob {job.name} was applied, and {standing.text}\n{remedy}")
    if observed.is_over or standing.cause == "held":
        return standing.line
    is_queued = observed.queue_conditions.get("QuotaReserved", {}).get("status") == "False"
    if is_queued or any(problem.blocks for problem in observed.problems):
        words = re.sub(rf"\b{job.name}-[-\w]+", "", standing.line)  # without names of pods
        return "\n".join(filter(None, (standing.line, keys_sentence(words))))
    nodes = [node_of(pod) for pod in observed.pods if not is_terminating(pod)]
    if 0 < sum(observed.expected_pods.values()) <= len(nodes) and all(nodes):
        return f"all pods are scheduled: {counted('pod', len(nodes))} on {counted('node', len({*nodes}))}"
    return ""
