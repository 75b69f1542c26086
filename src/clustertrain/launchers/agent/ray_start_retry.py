"""What follows if Ray does not start on a node of a job: another start of the job, or its end.

A job of several nodes is started again, as after the loss of a node: SLURM may allocate other nodes, and a
busy node may have recovered. failures.attempts limits these starts. A job of one node fails at once.
"""

from __future__ import annotations

from clustertrain.errors import EXIT_CLUSTER
from clustertrain.job.model import Job
from clustertrain.run_files.claims import allocation_of
from clustertrain.run_files.folder.run_dir import Attempt
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.result import ended, failed


def result_of_late_node(attempt: Attempt, job: Job, text: str, next_start: str | None) -> Result:
    """Return the result of an attempt that a node ended before the workers started; `text` names the node.

    `next_start`: what the result says of the next start; None if the scheduler never starts the job again.
    """
    start = allocation_of(attempt)
    if start is None or len(start.nodes) == 1 or next_start is None or not job.failures.most_restarts:
        return failed(attempt, text, EXIT_CLUSTER)
    return ended(attempt, "lost", "node_fail", text=f"{text}\n{next_start}")
