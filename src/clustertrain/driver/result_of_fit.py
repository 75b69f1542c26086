"""The result of an attempt as its driver writes it.

It comes from the report of rank 0 at the end, from the failure after which no start follows, or from an error
of the driver.
"""

from __future__ import annotations

from clustertrain.errors import ClusterTrainError, RunStopped
from clustertrain.run_files.claims import claim_of, shows_progress
from clustertrain.run_files.folder.run_dir import Attempt
from clustertrain.run_files.records.result import Failure, Result
from clustertrain.run_files.result import ended, failed, stopped
from clustertrain.run_files.states import CAUSE_OF_CODE
from clustertrain.worker.code.error_report import first_lines


def of_outcome(attempt: Attempt) -> Result:
    """Return the result if the trainer returned: finished, or stopped on request.

    Raises:
        StorageError: the claim of the attempt is missing, and with it what tells how the training ended.
    """
    claim_of(attempt)
    restart = attempt.newest_restart()
    outcome = restart.outcome.read() if restart is not None else None
    if outcome is not None and outcome.finished:
        cause = "early_stop" if outcome.early_stop else "finished"
        return ended(attempt, "done", cause, text=outcome.early_stop)
    return stopped(attempt)


def of_error(attempt: Attempt, error: BaseException) -> Result:
    """Return the result if an error ended the attempt."""
    if isinstance(error, RunStopped):
        return stopped(attempt)
    if isinstance(error, ClusterTrainError):
        return failed(attempt, str(error), error.exit_code)
    restart = attempt.newest_restart()
    failure = restart.failure.read() if restart is not None else None  # of this start, not of an earlier one
    if failure is not None:
        return of_failure(attempt, failure)
    what = f"{type(error).__name__}: {first_lines(str(error), lines=2, characters=600)}"
    text = f"{what}\nThe full traceback is in {attempt.driver_log}."
    return ended(attempt, "failed", "error", text=text)


def of_failure(attempt: Attempt, failure: Failure) -> Result:
    """Return the result if no start follows this failure."""
    cause, text, code = failure.cause, failure.text, failure.run_exit_code
    if cause == "same_error_twice":
        at = "" if failure.of_script else f" at step {failure.step}"
        why = "so another restart would not help."
        if not shows_progress(attempt.run, failure):
            why = (
                "and no file in the script's checkpoint folder shows that it got further.\n"
                "If it does, write how often it may start again: failures.retries."
            )
        text += f"\nThe same error occurred twice{at}, {why}"
    elif cause == "error" and code in CAUSE_OF_CODE:
        cause = CAUSE_OF_CODE[code]
    return ended(attempt, "failed", cause, exit_code=code, text=text)
