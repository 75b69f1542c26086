"""Requests that a run saves and ends, by a file in a storage that this machine reads."""

from __future__ import annotations

from collections.abc import Callable

from clustertrain.errors import JobError
from clustertrain.observe.status import Status
from clustertrain.run.folder import Attempt
from clustertrain.run.recorded_job import job_of
from clustertrain.run.records import Result, StopRequest
from clustertrain.waiting import wait_until

_BEYOND_GRACE_S = 60.0
_POLL_S = 1.0


def not_running(status: Status) -> JobError:
    """The error of `stop` for a run that is not running."""
    number = f"attempt {status.attempt.n} is " if status.attempt else "it is "
    return JobError(f"{status.run.name} is not running: {number}{status.state}.\nThere is nothing to stop.")


def request_user_stop(attempt: Attempt, status: Status, echo: Callable[[str], None]) -> None:
    """Write the stop request; the workers read it between two steps."""
    attempt.stop.write(StopRequest("user"))
    job = job_of(attempt)
    how = "the run saves and ends"
    if job is not None and job.is_script:
        how = f"the script gets SIGTERM, and SIGKILL after {job.failures.grace_s:g} s"
    echo(f"sent a stop request to {status.runner}: {how}")


def wait_for_result(attempt: Attempt, echo: Callable[[str], None]) -> Result | None:
    """Wait at most failures.grace + 60 s for the result of the attempt and print it. Returns it, or None."""
    within_s = _grace_s(attempt) + _BEYOND_GRACE_S
    result = wait_until(attempt.result.read, within_s, _POLL_S)
    if result is None:
        echo(f"it has not ended within {within_s:g} s")
        return None
    step = f" at step {result.step}" if result.step else ""
    echo(f"{attempt.run.name}: {result.state} ({result.cause}){step}")
    return result


def _grace_s(attempt: Attempt) -> float:
    job = job_of(attempt)
    return job.failures.grace_s if job is not None else 0.0
