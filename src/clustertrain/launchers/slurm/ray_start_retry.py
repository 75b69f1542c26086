"""What follows if Ray does not start on a node of a job: another start of the job, or its end.

A job of several nodes is started again, as after the loss of a node: SLURM may allocate other nodes, and a
busy node may have recovered. failures.retries limits these starts, because an error of the job or of the
site would end each of them. A job of one node fails at once.
"""

from __future__ import annotations

from clustertrain.errors import EXIT_CLUSTER
from clustertrain.job.model import Job
from clustertrain.launchers.slurm.section import Slurm
from clustertrain.run.claims import allocation_of
from clustertrain.run.folder import Attempt
from clustertrain.run.records import Result, SchedulerStart
from clustertrain.run.result import ended, failed


def result_of_late_node(attempt: Attempt, job: Job, text: str) -> Result:
    """The result of an attempt that a node ended before the workers started; `text` names the node."""
    start = allocation_of(attempt)
    if (
        start is None
        or len(start.nodes) == 1
        or not job.section(Slurm).requeue
        or not job.failures.most_restarts
    ):
        return failed(attempt, text, EXIT_CLUSTER)
    retries, number = job.failures.most_restarts, 1 + _in_a_row(attempt, start)
    if number > retries:
        used_up = f"All {retries} restarts of the job in a row for this are used up (failures.retries)."
        return failed(attempt, f"{text}\n{used_up}", EXIT_CLUSTER)
    again = f"The job goes back into the queue ({number} of at most {retries} times in a row for this)."
    return ended(attempt, "lost", "node_fail", text=f"{text}\n{again}")


def _in_a_row(attempt: Attempt, start: SchedulerStart) -> int:
    """How many starts of this job directly before this one ended in the same way."""
    count = 0
    for earlier in reversed([each for each in attempt.run.attempts() if each.n < attempt.n]):
        before, result = allocation_of(earlier), earlier.result.read()
        is_same_job = before is not None and before.is_same_job(start)
        is_same_end = result is not None and (result.state, result.cause) == ("lost", "node_fail")
        if not is_same_job or not is_same_end or earlier.newest_restart() is not None:
            break
        count += 1
    return count
