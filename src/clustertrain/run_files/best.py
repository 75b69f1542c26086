"""The best checkpoint of a run, by the job's `checkpoint.keep_best`."""

from __future__ import annotations

from clustertrain.checkpoints.retention import Retention
from clustertrain.job.model import Job
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.records.result import BestCheckpoint


def retention_of(job: Job) -> Retention:
    """Return the job's retention rule: how many checkpoints to keep, and which metric marks the best."""
    best = job.checkpoint.keep_best
    return Retention(
        keep_last=job.checkpoint.keep_last,
        best_metric=best.metric if best else None,
        best_mode=best.mode if best else "max",
    )


def best_checkpoint(run: RunDir, job: Job | None) -> BestCheckpoint | None:
    """Return the best checkpoint that the run has.

    Args:
        job: the job as the run recorded it, or None where it was killed before it recorded it.

    Returns:
        None without `checkpoint.keep_best`, or if no checkpoint has a finite value of its metric.

    Raises:
        StorageError: the storage refuses.
    """
    if job is None or (keep_best := job.checkpoint.keep_best) is None:
        return None
    found = retention_of(job).best(run.checkpoints)
    return None if found is None else BestCheckpoint(str(found[1]), keep_best.metric, found[0])
