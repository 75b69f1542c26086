"""`clustertrain ckpt`: the checkpoints of a run: listed, verified, exported, asked for. Loads no torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from clustertrain.checkpoints.manifest import CheckpointDamaged, UnknownFormat, names
from clustertrain.checkpoints.read import verify
from clustertrain.checkpoints.transfer import send_model
from clustertrain.errors import ClusterError, JobError, StorageError
from clustertrain.launchers.launcher import Launcher
from clustertrain.launchers.model import model_of
from clustertrain.launchers.target import Target
from clustertrain.node.units import aligned, moment_text, size_text
from clustertrain.node.waiting import wait_until
from clustertrain.observe.as_json import as_json
from clustertrain.observe.checkpoints import SCRIPT, SavedCheckpoint, checkpoints_of, choose, some
from clustertrain.observe.status import live_state
from clustertrain.run_files.claims import who_runs
from clustertrain.run_files.command_line import command_on
from clustertrain.run_files.folder.run_dir import Attempt, RunDir
from clustertrain.run_files.recorded_job import job_of
from clustertrain.run_files.records.requests import SaveRequest
from clustertrain.run_files.streams.step_counter import reached_step

_SAVES_WITHIN_S = 1800.0
_POLL_S = 0.3


def list_checkpoints(run: RunDir, *, json: bool) -> list[str]:
    """Return a line for each checkpoint, oldest first; the line of the best one ends with its value.

    Of a script, it has a line for each file, newest first. With `json`, return one array.
    """
    found, notes = checkpoints_of(run)
    if json:
        return [as_json(found)]
    if found and found[0].why == SCRIPT:
        return aligned([("NAME", "SIZE", "WRITTEN"), *((each.name, *_size_and_time(each)) for each in found)])
    rows: list[tuple[str, ...]] = [("NAME", "STEP", "EPOCH", "WORKERS", "WHY", "SIZE", "WRITTEN", "METRICS")]
    rows += [_row(each) for each in found]
    return [*aligned(rows), *notes]


def _row(each: SavedCheckpoint) -> tuple[str, ...]:
    if each.error is not None:
        return each.name, str(each.step), "-", "-", each.why, "-", "-", each.error.replace("\n", " ")
    metrics = ", ".join(f"{metric} {value:.4g}" for metric, value in each.metrics.items())
    return (
        each.name,
        str(each.step),
        str(each.epoch),
        str(each.workers),
        each.why,
        *_size_and_time(each),
        f"{metrics}  (best: {each.best.text})" if each.best else metrics,
    )


def _size_and_time(each: SavedCheckpoint) -> tuple[str, str]:
    return size_text(each.size_bytes or 0), moment_text(each.written_at or 0.0)


def verify_checkpoints(run: RunDir) -> Iterator[str]:
    """Read every byte of every checkpoint; yields a line for each.

    Raises:
        JobError: there is none.
        StorageError: at the end, if any of them is damaged.
    """
    shelf, damaged = run.checkpoints, []
    for name in some(shelf):
        try:
            size_bytes = verify(shelf, name).size_bytes
            yield f"{name}  whole, {size_text(size_bytes)}"
        except (CheckpointDamaged, UnknownFormat) as error:
            if name not in names(shelf):
                yield f"{name}  removed meanwhile: the run keeps others"
                continue
            damaged.append(str(name))
            yield f"{name}  {'damaged' if isinstance(error, CheckpointDamaged) else 'unknown'}: {error}"
    if damaged:
        raise StorageError(
            f"{len(damaged)} of the checkpoints in {shelf} do not verify: {', '.join(damaged)}.\n"
            "A resume skips damaged ones: restore them from a backup, or remove them. "
            "For an unknown one install the version that its line names."
        )


def export_model(
    launcher: Launcher, target: Target, name: str | None, to: Path, *, best: bool
) -> tuple[Path, Path]:
    """Export a checkpoint of a run; if only its cluster reads the storage, the model is downloaded first.

    Raises:
        JobError: the weights and their origin would have one name; and as `choose`.
        CheckpointDamaged, StorageError: as checkpoints.export.export.
    """
    from clustertrain.checkpoints.export import export, refuse_to_overwrite

    if refuse_to_overwrite(to) == to:
        raise JobError(f"{to} is the file of the origin as well.\nUse a name that does not end in .json.")
    with model_of(launcher, target, name, best=best) as (shelf, chosen):
        try:
            return export(shelf, chosen, to)
        except CheckpointDamaged as error:
            raise CheckpointDamaged(
                f"{error}\nCheckpoint {chosen} can be exported only with all files of its manifest.\n"
                "Restore them from a backup, or export another checkpoint of `ckpt ls` with --name."
            ) from error


def send_checkpoint(run: RunDir, name: str | None, *, best: bool) -> None:
    """Write the model of a checkpoint to stdout, for `export_model` elsewhere. Raises as `choose`."""
    send_model(run.checkpoints, choose(run, name, best=best), sys.stdout.buffer)
    sys.stdout.buffer.flush()


def save_now(run: RunDir) -> Iterator[str]:
    """Request a save, and wait until its checkpoint is complete; yields its name.

    Raises:
        JobError: the run does not train, runs a script, or ended before.
        ClusterError: it did not answer.
    """
    attempt = _training(run)
    restart = attempt.newest_restart()
    before = names(run.checkpoints)  # a start that has finished no step yet has reached 0
    reached = reached_step(restart) if restart is not None else 0
    attempt.save.write(SaveRequest())

    def look() -> tuple[bool, str]:
        has_ended = attempt.result.exists()  # first: what was written before the end is found
        new = (each for each in names(run.checkpoints) if each not in before and each.step > reached)
        return has_ended, next(map(str, new), "")

    has_ended, name = wait_until(look, _SAVES_WITHIN_S, _POLL_S, any)
    if name:
        yield name
    elif has_ended:
        raise JobError(f"{run.name} ended before it came to the request.\nStart it again.")
    else:
        raise ClusterError(f"{run.name} did not answer within {_SAVES_WITHIN_S:g} s.\nTry again.")


def _training(run: RunDir) -> Attempt:
    """Return the attempt that trains, if its entry point takes the request."""
    attempt = run.newest_attempt()
    job = job_of(attempt) if attempt is not None else None
    if job is not None and job.is_script:
        raise JobError(
            f"{run.name} is a {job.entry_point}, which saves its own checkpoints.\n"
            "ckpt save asks a task, or a function."
        )
    if attempt is None or who_runs(attempt) is None or live_state(attempt) != "running":
        raise JobError(
            f"{run.name} does not train now.\nckpt save asks a run between two of its steps: "
            f"`{command_on(run.uri, 'status')}` shows its state."
        )
    return attempt
