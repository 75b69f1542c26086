"""The output of `clustertrain ckpt`: the checkpoints of a run, listed and verified. Does not load torch."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

from clustertrain.checkpoints.manifest import (
    CheckpointDamaged,
    CheckpointName,
    Manifest,
    Shelf,
    UnknownFormat,
    names,
    read_manifest,
)
from clustertrain.checkpoints.read import verify
from clustertrain.checkpoints.transfer import receive_model, send_model
from clustertrain.errors import JobError, StorageError
from clustertrain.launchers.launcher import Launcher, Target
from clustertrain.run.best import best_checkpoint
from clustertrain.run.command_line import command_on
from clustertrain.run.folder import RunDir
from clustertrain.run.recorded_job import job_at
from clustertrain.run.records import BestCheckpoint
from clustertrain.units import aligned, size_text


def list_checkpoints(run: RunDir) -> list[str]:
    """A line for each checkpoint, oldest first. Reads only the manifests. The line of the best one by
    `checkpoint.keep_best` ends with its value."""
    best, notes = _best_or_note(run)
    rows: list[tuple[str, ...]] = [("NAME", "STEP", "EPOCH", "WORKERS", "WHY", "SIZE", "WRITTEN", "METRICS")]
    rows += [_row(run.checkpoints, name, best) for name in names(run.checkpoints)]
    return [*aligned(rows), *notes]


def _best_or_note(run: RunDir) -> tuple[BestCheckpoint | None, list[str]]:
    """The best checkpoint, or a note if this version does not accept the recorded job: the list is complete
    without it."""
    try:
        return best_checkpoint(run, job_at(run, run.job_key)), []
    except JobError as error:
        return None, [f"note: the best checkpoint is unknown: {str(error).splitlines()[0]}"]


def _row(shelf: Shelf, name: CheckpointName, best: BestCheckpoint | None) -> tuple[str, ...]:
    try:
        manifest = read_manifest(shelf, name)
    except (CheckpointDamaged, UnknownFormat) as error:
        why = "damaged" if isinstance(error, CheckpointDamaged) else "unknown"
        return str(name), str(name.step), "-", "-", why, "-", "-", str(error).replace("\n", " ")
    return (
        str(name),
        str(manifest.step),
        str(manifest.epoch),
        str(manifest.world_size),
        manifest.reason,
        size_text(_size_bytes(manifest)),
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest.written_at)),
        ", ".join(f"{metric} {value:.4g}" for metric, value in manifest.metrics.items())
        + (f"  (best: {best.text})" if best is not None and best.name == str(name) else ""),
    )


def _size_bytes(manifest: Manifest) -> int:
    return sum(entry.size_bytes for entry in manifest.files.values())


def verify_checkpoints(run: RunDir) -> Iterator[str]:
    """Read every byte of every checkpoint; yields a line for each.

    Raises:
        JobError: there is none.
        StorageError: at the end, if any of them is damaged.
    """
    shelf, damaged = run.checkpoints, []
    for name in _some(shelf):
        try:
            size_bytes = _size_bytes(verify(shelf, name))
            yield f"{name}  whole, {size_text(size_bytes)}"
        except (CheckpointDamaged, UnknownFormat) as error:
            damaged.append(str(name))
            yield f"{name}  {'damaged' if isinstance(error, CheckpointDamaged) else 'unknown'}: {error}"
    if damaged:
        raise StorageError(
            f"{len(damaged)} of the checkpoints in {shelf} do not verify: {', '.join(damaged)}.\n"
            "A resume skips them. Restore them from a backup, or remove them."
        )


def export_model(
    launcher: Launcher, target: Target, name: str | None, to: Path, *, best: bool
) -> tuple[Path, Path]:
    """Export a checkpoint of a run; if only its cluster reads the storage, the model is downloaded first.

    Raises: as `choose`, and as checkpoints.export.export.
    """
    from clustertrain.checkpoints.export import export, refuse_to_overwrite

    if launcher.storage_visible:
        run = target.visible_run()
        chosen = choose(run, name, best=best)
        try:
            return export(run.checkpoints, chosen, to)
        except CheckpointDamaged as error:
            raise CheckpointDamaged(
                f"{error}\nCheckpoint {chosen} can be exported only with all files of its manifest.\n"
                "Restore them from a backup, or export another checkpoint of `ckpt ls` with --name."
            ) from error
    refuse_to_overwrite(to)
    options = ["--send", *(["--best"] if best else []), *(["--name", name] if name is not None else [])]
    with TemporaryDirectory(prefix="clustertrain-") as folder, TemporaryFile() as archive:
        launcher.download(target, "ckpt export", *options, to=archive)
        archive.seek(0)
        return export(*receive_model(archive, Path(folder)), to)


def send_checkpoint(run: RunDir, name: str | None, *, best: bool) -> None:
    """Write the model of a checkpoint to stdout, for `export_model` elsewhere. Raises as `choose`."""
    send_model(run.checkpoints, choose(run, name, best=best), sys.stdout.buffer)
    sys.stdout.buffer.flush()


def choose(run: RunDir, name: str | None, *, best: bool = False) -> str:
    """The checkpoint of that name, or the best one, or the newest one.

    Raises:
        JobError: there is no checkpoint of that name, or none at all; the job has no `checkpoint.keep_best`,
            or no checkpoint has a value of its metric; both a name and the best one are requested.
    """
    if best and name is not None:
        raise JobError(f"--name {name} is given together with --best.\nUse one of them.")
    shelf = run.checkpoints
    found = [str(n) for n in _some(shelf)]
    if best:
        return _best(run)
    if name is None:
        return found[-1]
    if name not in found:
        raise JobError(f"{shelf} contains no checkpoint {name!r}.\nThere are: {', '.join(found)}.")
    return name


def _some(shelf: Shelf) -> list[CheckpointName]:
    """The checkpoints; JobError if there is none."""
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
        metrics = sorted({metric for name in names(run.checkpoints) for metric in _metrics(run, name)})
        raise JobError(
            f"No checkpoint in {run.checkpoints} has a finite value of {keep_best.metric}, the metric of "
            f"checkpoint.keep_best.\nTheir metrics are: {', '.join(metrics) or 'none'}. "
            "A checkpoint has the metrics of an evaluation at its step:\nlet train.eval_every and "
            "checkpoint.every meet, or choose one with --name."
        )
    return best.name


def _metrics(run: RunDir, name: CheckpointName) -> Iterable[str]:
    try:
        return read_manifest(run.checkpoints, name).metrics
    except (CheckpointDamaged, UnknownFormat):
        return ()
