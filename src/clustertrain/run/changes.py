"""The changes in the job of a run since its last attempt, and whether the run continues with them.

no checkpoint ─▶ the run starts over with the changed job
a checkpoint  ─▶ the run continues with --accept-changes; the arguments of a script need no consent
"""

from __future__ import annotations

from collections.abc import Callable

from clustertrain.checkpoints.manifest import names
from clustertrain.errors import JobError
from clustertrain.job.identity import Change, identity_difference, needs_consent
from clustertrain.job.model import Job
from clustertrain.run.claims import has_script_checkpoint
from clustertrain.run.folder import RunDir
from clustertrain.run.records import JobChanges

_MOST_LINES = 12


def job_changes(run: RunDir, old: Job, new: Job, *, accepted: bool, command: str) -> JobChanges | None:
    """The changes in the identity of the run; None if there are none.

    Args:
        accepted: whether the user gave --accept-changes.
        command: the command that starts the run, for the message.

    Raises:
        JobError: the run has a checkpoint, and the changes need consent or another kind of entry point.
    """
    keys = identity_difference(old, new)
    if not keys:
        return None
    changes = _from_newest_checkpoint(run, old, tuple(keys))
    if changes.starts_over:
        return changes
    if old.entry_point != new.entry_point:
        raise JobError(
            f"{run.uri} has a checkpoint of a {old.entry_point}, which a {new.entry_point} cannot load:\n"
            f"{_lines(keys)}\n"
            f"Choose another name, or start over with `{command} --fresh`, which keeps the old run."
        )
    if not accepted and any(needs_consent(change, new) for change in keys):
        raise JobError(
            f"{run.uri} has a checkpoint{_at(changes)}, and the job has changed since:\n"
            f"{_lines(keys)}\n"
            f"To continue from the checkpoint with the changed job: `{command} --accept-changes`\n"
            f"To start over and keep the old run: `{command} --fresh`"
        )
    return changes


def _from_newest_checkpoint(run: RunDir, old: Job, keys: tuple[Change, ...]) -> JobChanges:
    if old.entry_point == "script":
        return JobChanges(None if has_script_checkpoint(run) else 0, None, keys)
    found = names(run.checkpoints)
    return JobChanges(found[-1].step, str(found[-1]), keys) if found else JobChanges(0, None, keys)


def echo_changes(changes: JobChanges, echo: Callable[[str], None]) -> None:
    """Print the changes, a line for each key, and where the run continues."""
    if changes.starts_over:
        echo("The job has changed. The run has no checkpoint yet and starts over:")
    else:
        echo(f"The job has changed. The run continues from its checkpoint{_at(changes)} with:")
    for change in changes.keys:
        echo(f"  {change}")


def _at(changes: JobChanges) -> str:
    return "" if changes.checkpoint is None else f" {changes.checkpoint} (step {changes.step})"


def _lines(keys: list[Change]) -> str:
    more = [f"  and {len(keys) - _MOST_LINES} more"] if len(keys) > _MOST_LINES else []
    return "\n".join([*(f"  {change}" for change in keys[:_MOST_LINES]), *more])


def change_lines(run: RunDir) -> list[str]:
    """The changes in the job of a run, oldest first, such as `step 120: args.lr 0.1 → 0.01`. The steps of a
    script are not known: its lines begin with the attempt."""
    lines = []
    for attempt in run.attempts():
        if (changes := attempt.changes.read()) is not None:
            at = f"attempt {attempt.n}" if changes.step is None else f"step {changes.step}"
            lines += [f"{at}: {change.key} {change.old} → {change.new}" for change in changes.keys]
    return lines
