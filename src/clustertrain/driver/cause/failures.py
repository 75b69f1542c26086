"""The failure of a worker group: which rank failed first, and the record of it.

A failure is written to the folder of the restart that failed; the event `worker_died` has the same fields.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from clustertrain.driver.calls import NoAnswer, RankDied
from clustertrain.driver.cause.rank_failure import RankFailures, is_own_error
from clustertrain.driver.cause.ranks import Ranks
from clustertrain.driver.cause.signature import signature
from clustertrain.errors import EXIT_JOB
from clustertrain.observe.explain.first_cause import has_consequence, shows_lost_peer
from clustertrain.run_files.folder.run_dir import Restart
from clustertrain.run_files.records.result import Failure
from clustertrain.run_files.streams.event_log import EventLog
from clustertrain.run_files.streams.step_counter import reached_step

_OWN_FAULT = re.compile(
    r"(?:CUDA|HIP) error: "
)  # NCCL aborts a rank whose peer is gone, or whose own GPU failed


class GroupFailures:
    """The workers of one start, and the failure that ends it."""

    def __init__(self, worker_group: Any, restart: Restart) -> None:
        self.ranks = Ranks(worker_group, restart)
        self._failures = RankFailures(self.ranks)

    def report(self, errors: Mapping[int, BaseException]) -> None:
        """Determine the cause from the errors of the ranks, and record it."""
        if (hang := self.ranks.restart.hang.read()) is not None and hang.text:
            failure = self._failures.failure(hang.rank, "JobError", hang.text, signature(hang.text))
            self._record(replace(failure, run_exit_code=EXIT_JOB, fatal=True))
        else:
            self._record(self._first_cause({rank: _base(error) for rank, error in errors.items()}))

    def report_lost_worker(self, error: NoAnswer) -> None:
        """Record the failure of a worker that died or was silent before training began.

        The other workers may wait for it.
        """
        if isinstance(error, RankDied):
            dead = [rank for rank, worker in self.ranks.workers.items() if error.is_of(worker)]
            rank = min(dead or self.ranks.dead(), default=0)  # Ray's kill for memory names no worker
            self._record(self._failures.of_dead_rank(rank, error))
            return
        silent = (
            self.ranks.workers.keys() - self.ranks.all_answers().keys()
        )  # one that stages data is silent, too
        rank = min(self.ranks.stopped() or silent, default=0)
        limit = f"An answer may take {self.ranks.answer_s:g} s at a start (failures.watchdog.first_step)."
        text = f"{self.ranks.silence(rank)}.\n{limit}"
        self._record(self._failures.failure(rank, "watchdog", text, "watchdog", transient=True))

    def _record(self, failure: Failure) -> None:
        failure = replace(failure, restart=self.ranks.restart.number, step=reached_step(self.ranks.restart))
        self.ranks.restart.failure.write(failure)
        EventLog(self.ranks.attempt.events).write("worker_died", **asdict(failure))

    def _first_cause(self, errors: dict[int, BaseException]) -> Failure:
        """Return the root cause.

        A dead process takes precedence over exceptions, which follow from the lost connection. With NCCL,
        however, the survivors die, too, and then an exception may be the cause.
        """
        for rank, error in sorted(errors.items()):
            if is_own_error(error):
                return self._failures.of_exception(rank, error)
        dead = self.ranks.dead()
        first = next(
            (rank for rank in sorted(dead) if not _died_of_lost_peer(self.ranks.log_tail(rank))), None
        )
        raised = {rank: error for rank, error in sorted(errors.items()) if rank not in dead}
        if first is None and all(map(_is_collateral, raised.values())):
            first = min(dead, default=None)
        if first is not None:
            return self._failures.of_dead_rank(first, dead[first])
        found = [self._failures.of_exception(rank, error) for rank, error in raised.items()]
        return min(found, key=lambda f: (not f.fatal, _is_collateral(errors[f.rank]), f.rank))


def _died_of_lost_peer(log: str) -> bool:
    """Return whether a rank died because it lost another rank, by the end of its log.

    The log of the rank that is at fault shows another reason or, if the rank was killed, none.
    """
    return has_consequence(log) and _OWN_FAULT.search(log) is None


def _base(error: BaseException) -> BaseException:
    """Return the user's exception inside Ray Train's wrapper, or the error itself without a wrapper."""
    return getattr(error, "_base_exc", error)


def _is_collateral(error: BaseException) -> bool:
    report = getattr(error, "report", None)
    return shows_lost_peer(
        report.whole_message() if report is not None else f"{type(error).__name__}: {error}"
    )
