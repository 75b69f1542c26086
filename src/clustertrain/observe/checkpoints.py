"""The checkpoints of a run, as `ckpt ls` shows them, and the one that a user names. Does not load torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from clustertrain.checkpoints.manifest import (
    CheckpointDamaged,
    CheckpointFolder,
    CheckpointName,
    UnknownFormat,
    names,
    read_manifest,
)
from clustertrain.errors import JobError
from clustertrain.run_files.best import best_checkpoint
from clustertrain.run_files.claims import files_below
from clustertrain.run_files.command_line import command_on
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.recorded_job import job_at
from clustertrain.run_files.records.result import BestCheckpoint

if TYPE_CHECKING:
    from clustertrain.storage.s3 import S3Store

SCRIPT = "script"


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint by its manifest, or a file of a script in its checkpoint folder.

    Only name, size and time of a file are known.

    Attributes:
        name: the name of its folder, or the path of a script's file.
        step: the last step before it.
        epoch: the number of finished epochs.
        why: why it was saved; `damaged` or `unknown` if its manifest cannot be used; `script` for a file.
        error: why its manifest cannot be used; then what only the manifest has is null.
        workers: the number of ranks.
        size_bytes: the size of all its files.
        written_at: the time of its commit.
        metrics: the metrics of an evaluation at this step.
        best: its value of the metric of `checkpoint.keep_best`, if it is the best one.
    """

    name: str
    step: int | None
    why: str
    epoch: int | None = None
    workers: int | None = None
    size_bytes: int | None = None
    written_at: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    best: BestCheckpoint | None = None
    error: str | None = None


def checkpoints_of(run: RunDir) -> tuple[list[SavedCheckpoint], list[str]]:
    """Return the checkpoints, oldest first, and notes; for a script, its files, newest first.

    Reads only the manifests.
    """
    job, best, notes = None, None, []
    try:
        job = job_at(run, run.job_key)
        best = best_checkpoint(run, job)
    except JobError as error:  # this version does not accept the recorded job: the list is complete without
        notes = [f"note: the best checkpoint is unknown: {str(error).splitlines()[0]}"]
    if job is not None and job.is_script:
        return sorted(_files(run), key=lambda each: each.written_at or 0.0, reverse=True), notes
    found = [_checkpoint(run.checkpoints, name, best) for name in names(run.checkpoints)]
    if any(each.error for each in found):  # or the run, which trains, has removed it meanwhile
        there = {str(name) for name in names(run.checkpoints)}
        found = [each for each in found if each.name in there]
    return found, notes


def _files(run: RunDir) -> Iterator[SavedCheckpoint]:
    """Yield the files in the checkpoint folder of a script."""
    key = run.checkpoints.key
    if (folder := run.store.local_folder(key)) is None:
        store = cast("S3Store", run.store)
        for each, at in store.below(key):
            yield _file(each.removeprefix(f"{key}/"), store.size_or_none(each) or 0, at.timestamp())
        return
    for path in files_below(folder):
        with suppress(FileNotFoundError):  # the script removes old ones
            found = path.stat()
            yield _file(str(path.relative_to(folder)), found.st_size, found.st_mtime)


def _file(name: str, size_bytes: int, written_at: float) -> SavedCheckpoint:
    return SavedCheckpoint(name, None, SCRIPT, size_bytes=size_bytes, written_at=written_at)


def _checkpoint(
    shelf: CheckpointFolder, name: CheckpointName, best: BestCheckpoint | None
) -> SavedCheckpoint:
    try:
        manifest = read_manifest(shelf, name)
    except (CheckpointDamaged, UnknownFormat) as error:
        why = "damaged" if isinstance(error, CheckpointDamaged) else "unknown"
        return SavedCheckpoint(str(name), name.step, why, error=str(error))
    return SavedCheckpoint(
        str(name),
        manifest.step,
        manifest.reason,
        manifest.epoch,
        manifest.world_size,
        manifest.size_bytes,
        manifest.written_at,
        manifest.metrics,
        best if best is not None and best.name == str(name) else None,
    )


def choose(run: RunDir, name: str | None, *, best: bool = False) -> str:
    """Return the name of the checkpoint that is called `name`, or of the best one, or of the newest one.

    Raises:
        JobError: there is no checkpoint of that name, or none at all; the job has no `checkpoint.keep_best`,
            or no checkpoint has a value of its metric; both a name and the best one are requested.
    """
    if best and name is not None:
        raise JobError(f"--name {name} is given together with --best.\nUse one of them.")
    shelf = run.checkpoints
    found = [str(n) for n in some(shelf)]
    if best:
        return _best(run)
    if name is None:
        return found[-1]
    if name not in found:
        raise JobError(f"{shelf} contains no checkpoint {name!r}.\nThere are: {', '.join(found)}.")
    return name


def some(shelf: CheckpointFolder) -> list[CheckpointName]:
    """Return the names of the checkpoints.

    Raises:
        JobError: there is none.
    """
    if found := names(shelf):
        return found
    raise JobError(
        f"{shelf} contains no checkpoint.\n"
        "Train first; `checkpoint.every` in the job file determines when a checkpoint is saved."
    )


def _best(run: RunDir) -> str:
    job = job_at(run, run.job_key)
    keep_best = job.checkpoint.keep_best if job is not None else None
    if keep_best is None:
        raise JobError(
            f"The job of {run.uri} has no checkpoint.keep_best, so none of its checkpoints is the best.\n"
            f"Choose one with --name: `{command_on(run.uri, 'ckpt ls')}` shows their metrics.\n"
            "Or run the job with checkpoint.keep_best: {metric: accuracy, mode: max}."
        )
    best = best_checkpoint(run, job)
    if best is None:
        metrics = sorted({metric for each in checkpoints_of(run)[0] for metric in each.metrics})
        raise JobError(
            f"No checkpoint in {run.checkpoints} has a finite value of {keep_best.metric}, the metric of "
            f"checkpoint.keep_best.\nTheir metrics are: {', '.join(metrics) or 'none'}. "
            "A checkpoint has the metrics of an evaluation at its step:\nlet train.eval_every and "
            "checkpoint.every meet, or choose one with --name."
        )
    return best.name
