"""The loop over the starts of the worker group. A start is one call, with Ray and without."""

from __future__ import annotations

from collections.abc import Sequence

from clustertrain.driver.group.start import GroupStart
from clustertrain.driver.growth import Growth, next_larger
from clustertrain.driver.ray_cluster import RayCluster
from clustertrain.driver.result_of_fit import of_outcome
from clustertrain.driver.retry_policy import RetryPolicy
from clustertrain.driver.world_size import Workers
from clustertrain.job.model import Job
from clustertrain.run_files.attempt_ref import AttemptRef
from clustertrain.run_files.records.result import Result


def result_of_starts(
    ref: AttemptRef, job: Job, job_yaml: str, cluster: RayCluster, world_sizes: Sequence[int]
) -> Result:
    """Start the group until its training is done or stopped, or another start would not help.

    Args:
        job_yaml: the job as it is recorded, without the values of its secrets.
        world_sizes: the numbers of workers that a start may have, ascending.

    Raises:
        RunStopped: a stop was requested between two starts.
        Exception: what ended a start otherwise than by the failure of its ranks.
    """
    policy = RetryPolicy(ref, job.failures.most_restarts, cluster, world_sizes)
    next_: Workers | Result = cluster.workers_now(ref.open(), world_sizes)
    while isinstance(next_, Workers):
        workers = next_
        start = GroupStart(ref=ref, job_yaml=job_yaml, job=job, most_workers=world_sizes[-1])
        if _has_trained(start, cluster, Growth(ref, cluster, world_sizes, workers), workers):
            next_ = next_larger(ref.open(), workers) or of_outcome(ref.open())
        else:
            next_ = policy.after_failure(workers)
    return next_


def _has_trained(start: GroupStart, cluster: RayCluster, growth: Growth, workers: Workers) -> bool:
    if cluster.has_ray:
        from clustertrain.driver import trainer

        return trainer.has_trained(start, growth, workers, has_slots=cluster.has_worker_slots)
    from clustertrain.driver.group import forked

    return forked.has_trained(start, workers.count)
