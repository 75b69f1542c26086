"""The driver under a guardian, and what follows if it ends without a result: another start, or the end."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from clustertrain.errors import EXIT_RAY_ENDED
from clustertrain.job.references import with_values
from clustertrain.job.start_environment import python_environment, start_environment, without_gpus
from clustertrain.node import variables
from clustertrain.node.limits import read_limits
from clustertrain.node.memory_kill import kill_for_memory
from clustertrain.observe.explain.catalogue import RunKind, by_name, unchanged
from clustertrain.run_files.attempt_ref import AttemptRef
from clustertrain.run_files.folder.run_dir import Attempt
from clustertrain.run_files.recorded_job import job_of
from clustertrain.run_files.records.claim import RestartClaim
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.result import ended, stopped
from clustertrain.run_files.retry_budget import RetryBudget
from clustertrain.run_files.streams.event_log import EventLog
from clustertrain.run_files.streams.step_counter import reached_step
from clustertrain.supervise.process import Guarded

MARK = "clustertrain: "
"""Before the line of the driver's log with the reason for which the driver ended itself."""


def start_driver(
    attempt: Attempt, folder: Path, environment: Mapping[str, str], *, shielded: bool = False
) -> Guarded:
    """Start the driver of an attempt, with what its job sets for a start.

    `folder` is removed when the driver has ended.
    """
    job = job_of(attempt)
    if job is not None:
        job = job.model_copy(update={"env": with_values(job.env, environment)})
        of_job = {**python_environment(job), **start_environment(job), **without_gpus(job)}
        environment = {**environment, **of_job, variables.ENV: json.dumps(job.env)}
    command = [sys.executable, "-P", "-m", "clustertrain.driver", AttemptRef.of(attempt).to_text()]
    return Guarded(command, attempt.driver_log, folder, environment, shielded=shielded)


_RAY_EXIT = 1
"""With it Ray's own code ends a driver whose raylet or GCS has ended, if it notices that first."""


class DriverStarts:
    """The starts of an attempt's driver, by `start_one`.

    A driver that was killed, or whose Ray has ended, is started again, unless the kernel killed it for
    memory. This counts as a restart of the workers, because they end with it (failures.retries).
    """

    def __init__(self, attempt: Attempt, start_one: Callable[[], Guarded]) -> None:
        self._attempt, self._start_one = attempt, start_one

    def start(self) -> Guarded:
        self._limits_before = read_limits()
        newest = self._attempt.newest_restart()
        self._newest_before = newest.number if newest is not None else -1
        return self._start_one()

    def result_after(self, driver: Guarded) -> Result | None:
        """Return the result of an attempt whose driver has ended, or None to start the driver again."""
        attempt, why = self._attempt, _why_it_ended(driver)
        if (result := attempt.result.read()) is not None:
            return result
        job = job_of(attempt)
        if not _may_succeed_again(driver) or job is None:
            return ended(attempt, "failed", "driver_died", text=_text(why, driver))
        if attempt.stop.read() is not None:
            return stopped(attempt)
        if (text := self._killed_for_memory(why)) is not None:
            return ended(attempt, "failed", "out_of_memory", text=text)
        step = self._count()
        retries, patience = job.failures.most_restarts, RetryBudget.of(attempt, job.failures.most_restarts)
        if patience.is_over:
            cause = "retries_used_up" if retries else "driver_died"
            text = f"{_text(why, driver)}\n{patience.text(of_script=job.is_script)}".rstrip()
            return ended(attempt, "failed", cause, text=text)
        EventLog(attempt.launcher_events).write(
            "restarting",
            restart=patience.in_a_row,
            of=retries,
            step=step,
            text=why,
            of_script=job.is_script,
            with_driver=True,
        )
        return None

    def _killed_for_memory(self, why: str) -> str | None:
        """Return a text with the limit for which the kernel killed the driver, its guardian or its Ray.

        None if it did not kill them.
        """
        who, kill, _ = why.partition(" was killed by signal 9")
        if not kill:
            return None
        before = self._limits_before
        now = read_limits([group.path for group in before.cgroups])
        what = kill_for_memory(f"{who[0].upper()}{who[1:]}", before, now)
        return None if what is None else unchanged(what, by_name()["memory_limit"], RunKind.of(self._attempt))

    def _count(self) -> int:
        """Count the end of the driver as a failed start of the group, and return the last finished step.

        It is the start that was under way. If there was none, it is the next one, which is claimed for that.
        """
        newest = self._attempt.newest_restart()
        number = newest.number if newest is not None else -1
        if newest is not None and number > self._newest_before and not newest.failure.exists():
            return reached_step(newest)
        claim = RestartClaim(socket.gethostname(), os.getpid(), time.time())
        self._attempt.restart(number + 1).claim.create(claim)
        return 0


def _may_succeed_again(driver: Guarded) -> bool:
    """Return whether a signal or the end of Ray ended the driver; an error would occur again."""
    code = driver.end()
    return code < 0 or code > 128 or code in (_RAY_EXIT, EXIT_RAY_ENDED)


def _why_it_ended(driver: Guarded) -> str:
    if driver.end() == EXIT_RAY_ENDED:
        marked = (line.removeprefix(MARK) for line in reversed(driver.output()) if line.startswith(MARK))
        return next(marked, "Ray has ended")
    return f"the driver {driver.how_it_ended()}"


def _text(why: str, driver: Guarded) -> str:
    it = "it" if why.startswith("the driver") else "the driver"
    what = f"{why[0].upper()}{why[1:]} before {it} wrote a result."
    return f"{what} The end of {driver.log}:\n{driver.last_lines()}"
