"""The changes in the job of a run since its last attempt, and whether the run continues with them.

no checkpoint ─▶ the run starts over with the changed job
a checkpoint  ─▶ the run continues with --accept-changes; the arguments of a script need no consent

Reasons:

Identity of a run: the entry point, `args`, data, and the keys of `train` that change the arithmetic.
Everything else may change, and raising `epochs` or `steps` continues a finished run. Another number of
workers needs consent: `workers: [min, max]` or `--accept-changes`.

Identity protects a checkpoint, so a run without one takes any change and starts over. With a checkpoint,
a change needs `--accept-changes`: a run can continue with any values, but nobody should do so by mistake.
Only another kind of entry point is refused always, because their checkpoints have nothing in common (a
script and a module are of one kind); whether a checkpoint fits another class or model is decided where it
is loaded. Then the attempt exists already: one that was refused before its first step determines neither
state nor job of the run (`changed_nothing`), nor does one that finds nothing left to train of a finished
run. Tables and reports show the args with which the steps were trained (`trained_jobs`), several if they
changed. The arguments of a script need no consent, because only the script knows what they mean. The
attempt that continues with changes has changes.json: keys, old and new values, step and checkpoint;
`status` shows them. The flag is checked where the attempt is claimed, so it travels with a submission: in
the batch script's environment on SLURM, in the entrypoint's arguments on Kubernetes. There it accepts
only the changes between two attempts: after a requeue the job is the recorded one, and nothing is left to
accept.

Continuing a run is refused while another start of it is active. On one machine a process is identified by
pid, start time, boot and pid namespace. Of another machine only the heartbeat is visible; a change of it
is measured with the local clock, because clocks may differ. `--takeover` requests a stop of the other
start and claims the next attempt; the fence then keeps the other start from committing.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from clustertrain.checkpoints.manifest import names
from clustertrain.errors import JobError
from clustertrain.job.identity import Change, identity_difference, needs_consent
from clustertrain.job.model import Job
from clustertrain.run_files.claims import has_script_checkpoint
from clustertrain.run_files.command_line import CommandLine
from clustertrain.run_files.folder.run_dir import Attempt, RunDir
from clustertrain.run_files.records.provenance import JobChanges

_NAME_CHARACTERS = 43  # of at most 47, before the number of another run


def job_changes(
    run: RunDir, old: Job, new: Job, *, accepted: bool, command: CommandLine
) -> JobChanges | None:
    """Return the changes in the identity of the run, or None if there are none.

    Args:
        accepted: whether the user gave --accept-changes.
        command: the command that starts the run, for the message.

    Raises:
        JobError: the run has a checkpoint, and the changes need consent or another kind of entry point.
    """
    keys = identity_difference(old, new)
    if not keys:
        return None
    changes = _from_newest_checkpoint(run, old, new, tuple(keys))
    if changes.starts_over:
        return changes
    if old.entry_point != new.entry_point and not (old.is_script and new.is_script):
        raise JobError(
            f"{run.uri} has a checkpoint of a {old.entry_point}, which a {new.entry_point} cannot load:\n"
            f"{_lines(keys)}\n"
            f"Choose another name, or start over with `{command} --fresh`, which keeps the old run."
        )
    if not accepted and any(needs_consent(change, new) for change in keys):
        raise JobError(
            f"{run.uri} has a checkpoint{_at(changes)}, and the job has changed since:\n"
            f"{_lines(keys)}\n"
            f"To train the changed job as a new run beside it: `{run_beside(run, command)}`\n"
            f"To continue from the checkpoint with the changed job: `{command} --accept-changes`"
        )
    return changes


def run_beside(run: RunDir, command: CommandLine) -> CommandLine:
    """Return the command that trains the job as a new run, under a name that no run has."""
    names_left = (f"{run.name[:_NAME_CHARACTERS].rstrip('-')}-{n}" for n in count(2))
    return command.named(next(name for name in names_left if not run.store.list(name)))


def _from_newest_checkpoint(run: RunDir, old: Job, new: Job, keys: tuple[Change, ...]) -> JobChanges:
    if old.is_script:
        step = None if has_script_checkpoint(run) else 0
        return JobChanges(step, None, keys, of_script=new.is_script)
    found = names(run.checkpoints)
    return JobChanges(found[-1].step, str(found[-1]), keys) if found else JobChanges(0, None, keys)


def changed_nothing(attempt: Attempt) -> bool:
    """Return whether an attempt left state and job of the run as they were after the attempt before.

    It did if a changed job ended before its first step, because it does not fit its code or its checkpoint,
    or if nothing was left to train of a finished run.
    """
    result = attempt.result.read()
    if result is not None and result.already_finished:
        return True
    if result is None or (result.state, result.cause) != ("failed", "job"):
        return False
    changes = attempt.changes.read()
    return changes is not None and not changes.starts_over and (result.step or 0) <= (changes.step or 0)


def standing_attempt(run: RunDir, before: Attempt | None = None) -> Attempt | None:
    """Return the newest attempt, or the newest before another, that determines state and job of the run."""
    attempts = [each for each in reversed(run.attempts()) if before is None or each.n < before.n]
    claimed = (attempt for attempt in attempts if attempt.claim.exists())
    return next((attempt for attempt in claimed if not changed_nothing(attempt)), None)


def echo_changes(changes: JobChanges, echo: Callable[[str], None]) -> None:
    """Print the changes, a line for each key, and where the run continues."""
    if changes.of_script:
        echo("The job has changed. Its script gets:")
    elif changes.starts_over:
        echo("The job has changed. The run has no checkpoint yet and starts over:")
    else:
        echo(f"The job has changed. The run continues from its checkpoint{_at(changes)} with:")
    for change in changes.keys:
        echo(f"  {change}")


def _at(changes: JobChanges) -> str:
    return "" if changes.checkpoint is None else f" {changes.checkpoint} (step {changes.step})"


def _lines(keys: list[Change]) -> str:
    return "\n".join(f"  {change}" for change in keys)


def change_lines(run: RunDir) -> list[str]:
    """Return the changes in the job of a run, oldest first, such as `step 120: args.lr 0.1 → 0.01`.

    The steps of a script are not known: its lines begin with the attempt.
    """
    lines = []
    for attempt in run.attempts():
        if (changes := attempt.changes.read()) is not None and not changed_nothing(attempt):
            unknown = changes.of_script or changes.step is None
            at = f"attempt {attempt.n}" if unknown else f"step {changes.step}"
            lines += [f"{at}: {change.key} {change.old} → {change.new}" for change in changes.keys]
    return lines
