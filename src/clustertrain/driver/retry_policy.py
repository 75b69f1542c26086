"""Decides, after each failure of the worker group, whether another start can help.

Ray Train is configured to restart without limit; these rules end the run instead: a failure that would
certainly happen again; the same error at the same step twice; more than `failures.retries` restarts in a row
without a new checkpoint.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from clustertrain.driver.calls import NoAnswer
from clustertrain.driver.cause.failures import Group
from clustertrain.driver.ray_cluster import RayCluster
from clustertrain.driver.result_of_fit import NothingStarted
from clustertrain.driver.world_size import OtherWorkers, Workers
from clustertrain.errors import ClusterError, ClusterTrainError, RunStopped, StorageError
from clustertrain.run.attempt_ref import AttemptRef
from clustertrain.run.claims import committed_step, progress_of, shows_progress
from clustertrain.run.command_line import command_on
from clustertrain.run.folder import Attempt
from clustertrain.run.recorded_job import is_of_script, job_of
from clustertrain.run.records import Failure, ResizeRequest
from clustertrain.run.retry_budget import RetryBudget
from clustertrain.run.streams.event_log import EventLog
from clustertrain.waiting import wait_until

_LOOK_EVERY_S = 5.0  # for room for more workers


class StopRetrying(ClusterTrainError):
    """Raised into Ray Train's controller to end the run if another start would not help."""


class GroupNotStarted(Exception):
    """The start of a group failed before its training; another start may help."""


class RetryPolicy:
    """What follows each start of the worker group and its failure; with Ray, callbacks call it.

    Attributes:
        failed_start: the error that makes the trainer start the group again although its training had not
            begun.
        answer_s: how long a rank may take for a call of a start.
    """

    failed_start: type[Exception] = GroupNotStarted
    answer_s: float

    def __init__(
        self,
        ref: AttemptRef,
        retries: int,
        cluster: RayCluster,
        world_sizes: Sequence[int],
        workers: Workers,
    ) -> None:
        self.ref, self._workers = ref, workers
        self._retries = retries
        self._cluster, self._world_sizes = cluster, tuple(world_sizes)
        self._patience = RetryBudget.of(ref.open(), retries)
        self._group: Group | None = None
        self._last_handled = -1  # the newest restart whose failure was handled
        self._seen: set[tuple[str, int, str | None]] = set()
        self._looked_s, self._room_since_s = -math.inf, math.inf

    def group_exists(self, worker_group: Any, restart: int, answer_s: float) -> None:
        """Note the limits of the workers, whose training has not begun.

        Raises:
            NoAnswer: a worker has died, or has not answered within `answer_s`.
        """
        self.answer_s = answer_s
        self._group = Group(worker_group, self.ref.open().restart(restart))
        self._group.note_limits(answer_s)

    def has_stopped_rank(self) -> bool:
        """Whether a signal has stopped a rank that is on the node of the driver."""
        return self._group is not None and bool(self._group.stopped_ranks())

    def has_started(self) -> None:
        """Record that the training of the workers begins."""
        if self._group is not None:
            self._group.began_s = time.monotonic()
            EventLog(self.ref.open().events).write("group_started", **self._group.as_event())

    def has_failed(self, errors: Mapping[int, BaseException]) -> None:
        """Record the failure of the workers, by rank, once for each start."""
        if self._group is not None:
            group, self._group = self._group, None
            group.report(errors)

    def has_lost_worker(self, error: NoAnswer) -> None:
        """Record that a worker has died, or does not answer, before its training began."""
        if self._group is not None:
            group, self._group = self._group, None
            group.report_lost_worker(error)

    def before_restart(self) -> None:
        """Decide whether the workers start again, and wait until they can.

        Raises:
            StopRetrying, NothingStarted: another start would not help.
            RunStopped: a stop was requested.
            ClusterError: there is no room for the workers.
            OtherWorkers: there is room for fewer or more, or for others.
        """
        attempt = self.ref.open()
        failure = self._new_failure(attempt)
        if failure is None or not failure.fatal:
            _check_stop(attempt)
        if failure is not None and (cause := self._same_again(attempt, failure)):
            _write(attempt, replace(failure, cause=cause))
            raise StopRetrying(failure.text)
        logs = command_on(attempt.uri, "logs", "--driver")
        not_started = f"The workers could not be started; `{logs}` shows why."
        text = failure.text if failure else not_started
        of_script = is_of_script(attempt)
        if self._patience.is_over_after(committed_step(attempt.run)):
            text = f"{text}\n{self._patience.text(of_script=of_script)}".rstrip()
            if failure is None:
                raise NothingStarted(text)
            cause = "retries_used_up" if self._retries else failure.cause
            _write(attempt, replace(failure, cause=cause, text=text))
            raise StopRetrying(text)
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
        self._wait_for_workers(attempt, failure)
        workers = self._cluster.workers_now(attempt, self._world_sizes)
        if workers != self._workers:
            raise OtherWorkers(workers)

    def look_for_room(self) -> None:
        """Ask the workers to save and return once there has been room for more of them for a while. A script
        is not asked, because only it knows when it has saved."""
        now, count = time.monotonic(), self._workers.count
        if count == self._world_sizes[-1] or now - self._looked_s < _LOOK_EVERY_S:
            return
        self._looked_s = now
        with suppress(StorageError):  # an unreachable storage delays the request, and never the training
            attempt = self.ref.open()
            attempt = attempt.run.with_patience(0).attempt(attempt.n)
            possible = self._cluster.workers_now(attempt, self._world_sizes).count
            self._room_since_s = min(self._room_since_s, now) if possible > count else math.inf
            restart = attempt.newest_restart()
            if now - self._room_since_s < self._cluster.resize_after_s or restart is None:
                return
            if not restart.resize.exists() and not is_of_script(attempt):
                restart.resize.write(ResizeRequest(possible))
                room = f"there is room for {possible} workers"
                text = f"{room}: the present {count} will save, and {possible} continue"
                EventLog(attempt.events).write("note", text=text)

    def _leave_out(self, attempt: Attempt, failure: Failure) -> str:
        if self._cluster.can_do_without(attempt, failure.broken_node, self._world_sizes):
            return f"The next starts leave {failure.host} out: the other nodes have room for the workers."
        _write(attempt, replace(failure, broken_node=""))
        return f"The next start uses {failure.host} again: the other nodes have no room for the workers."

    def _wait_for_workers(self, attempt: Attempt, failure: Failure | None) -> None:
        try:
            self._cluster.wait_for_workers(attempt, self._world_sizes)
        except ClusterError as error:
            if failure is not None:
                text = f"{failure.text}\n{error}"
                _write(attempt, replace(failure, text=text, kit_exit_code=error.exit_code))
            raise

    def _new_failure(self, attempt: Attempt) -> Failure | None:
        """The failure of the newest restart, or None if no new restart was claimed."""
        restart = attempt.newest_restart()
        if restart is None or restart.number <= self._last_handled:
            return None
        self._last_handled = restart.number
        return restart.failure.read()

    def _same_again(self, attempt: Attempt, failure: Failure) -> str | None:
        """The cause with which to end the run, if the next restart would fail in the same way."""
        if failure.fatal:
            return failure.cause
        # The steps of a script are not known: its files show whether it got further in between.
        files = progress_of(attempt.run).files if failure.of_script else None
        if not shows_progress(attempt.run, failure) and _says_retries(attempt):
            return None  # it may have a state of its own
        seen = (failure.signature, failure.step, files)
        if seen in self._seen and not failure.transient:
            return "same_error_twice"
        self._seen.add(seen)
        return None


def _write(attempt: Attempt, failure: Failure) -> None:
    attempt.restart(failure.restart).failure.write(failure)


def _says_retries(attempt: Attempt) -> bool:
    job = job_of(attempt)
    return job is not None and job.failures.retries is not None


def _check_stop(attempt: Attempt) -> bool:
    """
    Raises:
        RunStopped: a stop was requested.
    """
    if attempt.stop.read() is not None:
        raise RunStopped("A worker ended after the stop request.", checkpointed=False)
    return False


def _wait(attempt: Attempt, seconds: float) -> None:
    """Wait before the next start, unless a stop is requested."""
    wait_until(lambda: _check_stop(attempt), seconds, poll_s=1.0)
