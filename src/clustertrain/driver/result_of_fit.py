"""The result of an attempt as its driver writes it: from the report of rank 0 at the end, or from the error
that Ray raised."""

from __future__ import annotations

from collections.abc import Iterator

from clustertrain.errors import ClusterTrainError, RunStopped
from clustertrain.run.claims import claim_of, shows_progress
from clustertrain.run.folder import Attempt
from clustertrain.run.records import Failure, Result
from clustertrain.run.result import ended, failed, stopped
from clustertrain.run.states import CAUSE_OF_CODE
from clustertrain.worker.code.error_report import first_lines


class NothingStarted(ClusterTrainError):
    """The last start of the group came to nothing: a failure that is recorded is that of an earlier one."""


def of_outcome(attempt: Attempt) -> Result:
    """The result if the trainer returned: finished, or stopped on request.

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
    """The result if the trainer raised an error: the cause inside Ray's wrappers that a user can act on."""
    chain = list(causes(error))
    if any(isinstance(e, RunStopped) for e in chain):
        return stopped(attempt)
    restart = attempt.newest_restart()
    failure = restart.failure.read() if restart is not None else None  # of this start, not of an earlier one
    kit = next((e for e in reversed(chain) if isinstance(e, ClusterTrainError) and not _is_of_ray(e)), None)
    if failure is not None and not isinstance(kit, NothingStarted):
        return _of_failure(attempt, failure)
    if kit is not None:
        return failed(attempt, str(kit), kit.exit_code)
    what = f"{type(chain[-1]).__name__}: {first_lines(str(chain[-1]), lines=2, characters=600)}"
    text = f"{what}\nThe full traceback is in {attempt.driver_log}."
    return ended(attempt, "failed", "error", text=text)


def _is_of_ray(error: BaseException) -> bool:
    """Whether it is a RayTaskError, which also has the type of its cause. Its text is a traceback."""
    return hasattr(error, "as_instanceof_cause")


def _of_failure(attempt: Attempt, failure: Failure) -> Result:
    cause, text, code = failure.cause, failure.text, failure.kit_exit_code
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


def causes(error: BaseException) -> Iterator[BaseException]:
    """An error and the errors that it wraps, outermost first: Ray's wrappers keep them in five attributes."""
    seen: set[int] = set()
    queue: list[BaseException | None] = [error]
    while queue:
        e = queue.pop(0)
        if e is None or id(e) in seen:
            continue
        seen.add(id(e))
        yield e
        inner = [getattr(e, name, None) for name in ("controller_failure", "_base_exc", "cause", "__cause__")]
        inner += list(getattr(e, "worker_failures", {}).values())
        queue += [i for i in inner if isinstance(i, BaseException)]
