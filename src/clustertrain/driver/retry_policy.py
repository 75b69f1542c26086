"""Decides, after each failure of the worker group, whether another start can help.

What ends the run: a failure that would certainly happen again; the same error at the same step twice; more
than `failures.retries` restarts in a row without a new checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clustertrain.driver.ray_cluster import RayCluster
from clustertrain.driver.result_of_fit import of_failure
from clustertrain.driver.world_size import Workers
from clustertrain.errors import ClusterError, ClusterTrainError, RunStopped
from clustertrain.node.waiting import wait_until
from clustertrain.run_files.attempt_ref import AttemptRef
from clustertrain.run_files.claims import committed_step, progress_of, shows_progress
from clustertrain.run_files.command_line import command_on
from clustertrain.run_files.folder.run_dir import Attempt
from clustertrain.run_files.recorded_job import is_of_script, job_of
from clustertrain.run_files.records.result import Failure, Result
from clustertrain.run_files.result import failed
from clustertrain.run_files.retry_budget import RetryBudget
from clustertrain.run_files.streams.event_log import EventLog


class RetryPolicy:
    """What follows the failures of the starts of a run."""

    def __init__(
        self, ref: AttemptRef, retries: int, cluster: RayCluster, world_sizes: Sequence[int]
    ) -> None:
        self._ref, self._retries = ref, retries
        self._cluster, self._world_sizes = cluster, tuple(world_sizes)
        self._patience = RetryBudget.of(ref.open(), retries)
        self._last_handled = -1  # the newest restart whose failure was handled
        self._seen: set[tuple[Workers, str, int, str | None]] = set()

    def after_failure(self, workers: Workers) -> Workers | Result:
        """Return the workers of the next start, or the result of the attempt if no start would help.

        The workers are returned as soon as there is room for them.

        Args:
            workers: the workers of the start that failed.

        Raises:
            RunStopped: a stop was requested.
        """
        attempt = self._ref.open()
        failure = self._new_failure(attempt)
        if failure is None or not failure.fatal:
            _check_stop(attempt)
        if failure is not None and (cause := self._same_again(attempt, failure, workers)):
            return _given_up(attempt, replace(failure, cause=cause))
        logs = command_on(attempt.uri, "logs", "--driver")
        not_started = f"The workers could not be started; `{logs}` shows why."
        text = failure.text if failure else not_started
        of_script = is_of_script(attempt)
        if self._patience.is_over_after(committed_step(attempt.run)):
            text = f"{text}\n{self._patience.text(of_script=of_script)}".rstrip()
            if failure is None:
                return failed(attempt, text, ClusterTrainError.exit_code)
            cause = "retries_used_up" if self._retries else failure.cause
            return _given_up(attempt, replace(failure, cause=cause, text=text))
        if failure is not None and failure.broken_node:
            text += f"\n{self._leave_out(attempt, failure)}"
        EventLog(attempt.events).write(
            "restarting",
            restart=self._patience.in_a_row,
            of=self._retries,
            step=failure.step if failure else 0,
            text=text,
            of_script=of_script,
        )
        if failure is not None and failure.retry_after_s:
            _wait(attempt, failure.retry_after_s)
        try:
            self._cluster.wait_for_workers(attempt, self._world_sizes)
        except ClusterError as error:
            if failure is None:
                return failed(attempt, str(error), error.exit_code)
            text = f"{failure.text}\n{error}"
            return _given_up(attempt, replace(failure, text=text, run_exit_code=error.exit_code))
        return self._cluster.workers_now(attempt, self._world_sizes)

    def _leave_out(self, attempt: Attempt, failure: Failure) -> str:
        if self._cluster.can_do_without(attempt, failure.broken_node, self._world_sizes):
            return f"The next starts leave {failure.host} out: the other nodes have room for the workers."
        _write(attempt, replace(failure, broken_node=""))
        return f"The next start uses {failure.host} again: the other nodes have no room for the workers."

    def _new_failure(self, attempt: Attempt) -> Failure | None:
        """Return the failure of the newest restart, or None if no new restart was claimed."""
        restart = attempt.newest_restart()
        if restart is None or restart.number <= self._last_handled:
            return None
        self._last_handled = restart.number
        return restart.failure.read()

    def _same_again(self, attempt: Attempt, failure: Failure, workers: Workers) -> str | None:
        """Return the cause with which to end the run, if the next restart would fail in the same way."""
        if failure.fatal:
            return failure.cause
        # The steps of a script are not known: its files show whether it got further in between.
        files = progress_of(attempt.run).files if failure.of_script else None
        if not shows_progress(attempt.run, failure) and _says_retries(attempt):
            return None  # it may have a state of its own
        seen = (workers, failure.signature, failure.step, files)
        if seen in self._seen and not failure.transient:
            return "same_error_twice"
        self._seen.add(seen)
        return None


def _write(attempt: Attempt, failure: Failure) -> None:
    attempt.restart(failure.restart).failure.write(failure)


def _given_up(attempt: Attempt, failure: Failure) -> Result:
    _write(attempt, failure)
    return of_failure(attempt, failure)


def _says_retries(attempt: Attempt) -> bool:
    job = job_of(attempt)
    return job is not None and job.failures.retries is not None


def _check_stop(attempt: Attempt) -> bool:
    """Raise RunStopped if a stop was requested; otherwise return False.

    Raises:
        RunStopped: a stop was requested.
    """
    if attempt.stop.read() is not None:
        raise RunStopped("A worker ended after the stop request.", checkpointed=False)
    return False


def _wait(attempt: Attempt, seconds: float) -> None:
    """Wait before the next start, unless a stop is requested."""
    wait_until(lambda: _check_stop(attempt), seconds, poll_s=1.0)
