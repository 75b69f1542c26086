"""The result of an attempt, computed from its files and written once.

The driver writes it. If the driver died, `clustertrain run` or the agent of the head node writes it.
"""

from __future__ import annotations

from collections.abc import Sequence

from clustertrain.checkpoints.manifest import names, newest_manifest
from clustertrain.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_STOPPED
from clustertrain.run_files.best import best_checkpoint
from clustertrain.run_files.claims import has_script_checkpoint
from clustertrain.run_files.folder.run_dir import Attempt, Restart
from clustertrain.run_files.job_diff import standing_attempt
from clustertrain.run_files.recorded_job import is_of_script, job_of, restore_job
from clustertrain.run_files.records.requests import StopRequest
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.states import CAUSE_OF_CODE
from clustertrain.run_files.streams.events import read_events
from clustertrain.run_files.streams.history import curve
from clustertrain.run_files.streams.step_counter import reached_step


def write_result(attempt: Attempt, result: Result) -> Result:
    """Write the result unless there is one already; returns the one that is stored."""
    attempt.result.create(result)
    stored = attempt.result.read() or result
    if stored.already_finished:
        restore_job(attempt.run)
    return stored


def ended(
    attempt: Attempt, state: str, cause: str, *, exit_code: int | None = None, text: str = ""
) -> Result:
    """Return the result of an attempt that is over, with the figures from its files."""
    restarts, of_script = attempt.restarts(), is_of_script(attempt)
    outcome = restarts[-1].outcome.read() if restarts else None
    reached = [reached_step(restart) for restart in restarts]
    step = (outcome.step if outcome else None) or max(reached, default=0) or (None if of_script else 0)
    resumed = [e for e in read_events(attempt.run, attempt.events_key) if e["kind"] == "resumed"]
    checkpoints = names(attempt.run.checkpoints)
    if exit_code is None:
        exit_code = _exit_code(attempt, state)
    metrics, already_finished = outcome.metrics if outcome else {}, False
    resumed_step = 0 if of_script else _resumed_step(restarts)
    if state == "done" and (step or 0) <= resumed_step:  # nothing was left to train
        before = standing_attempt(attempt.run, attempt)
        earlier = before.result.read() if before is not None else None
        if earlier is not None and earlier.state == "done" and earlier.step is not None:
            step, metrics, already_finished = earlier.step, earlier.metrics, True
        elif not of_script:
            step, metrics = resumed_step, metrics or _last_figures(attempt)
    return Result(
        state=state,
        cause=cause,
        exit_code=exit_code,
        text=text,
        step=step,
        epoch=outcome.epoch if outcome else None,
        metrics=metrics,
        checkpoint=str(checkpoints[-1]) if checkpoints else None,
        best=best_checkpoint(attempt.run, job_of(attempt)),
        restarts=restarts[-1].number if restarts else 0,
        redone_steps=None if of_script else sum(int(e.get("redone_steps", 0)) for e in resumed),
        skipped_steps=outcome.skipped_steps if outcome else None,
        world_size=_world_size(attempt, restarts),
        # A clock that was set back during the training must not make the record one that no reader accepts.
        train_s=max(0.0, outcome.train_ended - outcome.train_started) if outcome else None,
        already_finished=already_finished,
    )


def _resumed_step(restarts: Sequence[Restart]) -> int:
    """Return the step of the checkpoint from which an attempt continued; -1 without one."""
    plan = restarts[0].plan.read() if restarts else None
    return plan.step if plan is not None and plan.checkpoint is not None else -1


def _last_figures(attempt: Attempt) -> dict[str, float]:
    """Return the last metrics of the run, in the form that an outcome has them."""
    newest = curve(attempt.run)[-1:]
    return {
        name: float(value)
        for record in newest
        for name, value in record.items()
        if name not in ("time", "step", "epoch") and isinstance(value, int | float)
    }


def _world_size(attempt: Attempt, restarts: Sequence[Restart]) -> int | None:
    """Return the number of workers of the newest start of the group; without one, the number in the claim."""
    plans = (restart.plan.read() for restart in reversed(restarts))
    sizes = (plan.world_size for plan in plans if plan is not None)
    claim = attempt.claim.read()
    return next(sizes, claim.world_size if claim is not None else None)


def _exit_code(attempt: Attempt, state: str) -> int:
    """Return the exit code of `clustertrain run` for an attempt that ended in a state.

    For a stop it is 75 if there is a checkpoint to continue from, 130 if there is none.
    """
    if state not in ("stopped", "preempted", "cancelled"):
        return EXIT_DONE if state == "done" else EXIT_FAILED
    if names(attempt.run.checkpoints):
        saved = newest_manifest(attempt.run.checkpoints) is not None
    else:
        saved = has_script_checkpoint(attempt.run)  # a script chooses its own names
    return EXIT_STOPPED if saved else EXIT_INTERRUPTED


def stopped(attempt: Attempt) -> Result:
    """Return the result of an attempt that ended early, with the state and the cause of the stop request."""
    request = attempt.stop.read() or StopRequest("user")
    return ended(attempt, request.state, request.cause, text=request.text)


def failed(attempt: Attempt, text: str, exit_code: int) -> Result:
    """Return the result of an attempt that an error of clustertrain ended; its exit code gives the cause."""
    return ended(attempt, "failed", CAUSE_OF_CODE.get(exit_code, "error"), exit_code=exit_code, text=text)
