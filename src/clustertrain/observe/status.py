"""The state of a run by its files, as `status` and `ls` show it if this machine can access the storage.

A launcher with a scheduler combines it with the scheduler's state: launchers/scheduler/status.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from clustertrain.errors import JobError, StorageError
from clustertrain.job.model import Job
from clustertrain.observe.ledger.book import Ledger
from clustertrain.observe.ledger.of_run import ledger_of
from clustertrain.observe.run_state import RunState, alive, of_result
from clustertrain.run_files.claims import allocation_of, committed_step, who_runs
from clustertrain.run_files.command_line import UNKNOWN, command_on, typed
from clustertrain.run_files.folder.run_dir import Attempt, RunDir
from clustertrain.run_files.job_diff import standing_attempt
from clustertrain.run_files.recorded_job import is_of_script
from clustertrain.run_files.records.claim import Claim
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.records.scheduler import SchedulerJob
from clustertrain.run_files.run_address import RunAddress, addresses_of, run_names
from clustertrain.run_files.states import STATES
from clustertrain.run_files.streams.events import Record
from clustertrain.run_files.streams.history import curve, events_of_attempt
from clustertrain.storage import Location, open_store

Row = tuple[str, str]
_LAST_LINES = 20  # of the log, from which the time that is left is known


class NotStarted(JobError):
    """There is no such run: it was neither started nor submitted."""


@dataclass(frozen=True)
class Status:
    """One run, at one moment.

    Attributes:
        standing: state and cause, a row of states.STATES.
    """

    files: RunFiles
    standing: RunState

    @property
    def run(self) -> RunDir:
        return self.files.run

    @property
    def attempt(self) -> Attempt | None:
        """The newest one that was not refused, or None if the run was submitted and has not started."""
        return self.files.attempt

    @property
    def ended(self) -> Result | None:
        """The result of that attempt, or None if it has not ended; the run may be queued again since."""
        return self.files.result

    @property
    def state(self) -> str:
        return self.standing.state

    @property
    def runner(self) -> str | None:
        """The process or job that runs it, or None."""
        return self.standing.runner

    @property
    def result(self) -> Result | None:
        """The result of the newest attempt, if it determines the state of the run."""
        return self.ended if self.standing.of_result else None

    @property
    def step(self) -> int | None:
        """The last step, or None before the first, and for a script, which counts its own.

        If the newest start ended before its first step, it is the step of the newest checkpoint, from which
        the next start continues.
        """
        step: int | None = 0
        if self.result is not None:
            step = self.result.step
        elif self.last:
            step = int(self.last["step"])
        elif self.attempt is not None and is_of_script(self.attempt):
            step = None
        return step if step != 0 else committed_step(self.run) or None

    @property
    def left_s(self) -> float | None:
        """The time that the steps until `total_steps` will take, if they are as long as the last ones."""
        lines = [record for record in self.curve if record["kind"] == "train"][-_LAST_LINES:]
        total = lines[-1].get("total_steps") if lines else None
        if not isinstance(total, int) or lines[-1]["step"] <= lines[0]["step"]:
            return None
        step_s = (lines[-1]["time"] - lines[0]["time"]) / (lines[-1]["step"] - lines[0]["step"])
        return float(max(0.0, step_s * (total - lines[-1]["step"])))

    @property
    def exit_code(self) -> int | None:
        """The exit code for the current state, or None if the run has not ended."""
        return self.standing.exit_code if self.result is None else self.result.exit_code

    @cached_property
    def last(self) -> Record | None:
        """The newest record of the run's metrics, or None."""
        return self.curve[-1] if self.curve else None

    @cached_property
    def curve(self) -> list[Record]:
        """The metrics of the run."""
        return curve(self.run)

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger of the run; reads its events and metrics. It ends now unless the run has ended."""
        return ledger_of(self.run, alive=not STATES[self.state].final)

    @property
    def where(self) -> str:
        """The scheduler's job that the run is in, or empty for a run on one machine."""
        return ""

    @property
    def no_answer(self) -> str | None:
        """The reason why the scheduler did not answer, in one line, or None."""
        return None

    @property
    def note(self) -> str | None:
        """Why the scheduler did not answer, and the source of the state, or None if it answered."""
        if self.no_answer is None or self.standing.over:
            return None
        lives = (
            "; the heartbeat shows that it is running"
            if self.runner
            else "; this is the state in the storage"
        )
        return f"{self.no_answer}{lives}"

    def told(self) -> tuple[str, RunState]:
        """Return a line such as `running: attempt 2, SLURM job 12 on node[1-2]`, and the standing."""
        attempt = f"attempt {self.attempt.n}" if self.attempt and self.state != "queued" else ""
        why = self.standing.text or self.runner or ""
        details = ", ".join(part for part in (attempt, why, self.note or "") if part)
        return f"{self.state}: {details}" if details else self.state, self.standing

    @property
    def job_rows(self) -> list[Row]:
        """The scheduler's rows about the run's job, for the table of `status`."""
        return []


StatusOf = Callable[[RunDir], Status]
"""How a launcher finds the status of a run in a storage that this machine can access."""


def is_job_file(target: str) -> bool:
    """Return whether the argument of a command is the path of a job file, which may be missing."""
    return os.path.isfile(target) or (target.endswith((".yaml", ".yml")) and not Location(target).is_s3)


def places_named(target: str, job: Job | None) -> list[RunAddress]:
    """Return the places that the argument of a command may mean.

    Args:
        job: the job of the job file, if the argument is one.
    """
    return addresses_of(target) if job is None else [RunAddress(job.storage.location, job.name)]


def run_at(places: Sequence[RunAddress]) -> tuple[RunDir, RunAddress] | None:
    """Return the first of the places that has a started or submitted run, with this run, or None."""
    for place in places:
        if is_known(run := place.run()):
            return run, place
    return None


def no_run(target: str, job: Job | None, sets: Sequence[str] = ()) -> NotStarted:
    """Return the error for an argument that names no run; it lists the runs of the storage."""
    run = places_named(target, job)[0].run()
    known = run_names(open_store(target) if job is None else run.store, skip=lambda error: None)
    start = UNKNOWN if job is None else typed("run", target, sets)
    remedy = f"Started so far: {', '.join(known[:8])}." if known else f"Start it with `{start}`."
    return NotStarted(f"{target}: there is no run at {run.store.uri(run.name)}.\n{remedy}")


def is_known(run: RunDir) -> bool:
    return run.newest_attempt() is not None or bool(run.submissions())


@dataclass(frozen=True)
class RunFiles:
    """The contents of the files that determine the state of a run."""

    run: RunDir
    attempt: Attempt | None
    claim: Claim | None
    result: Result | None
    submissions: list[SchedulerJob]

    @property
    def launcher(self) -> str:
        """The name of the launcher that has the run, from the newest submission or attempt."""
        if self.submissions and self.submissions[-1].time > self._began_at:
            return self.submissions[-1].scheduler
        return self.claim.launcher if self.claim is not None else "local"

    @property
    def started_at(self) -> float:
        """When the run was last submitted or started, in seconds since 1970."""
        submitted = [each.time for each in self.submissions]
        return max([self._began_at, *submitted])

    @property
    def _began_at(self) -> float:
        return self.claim.time if self.claim is not None else 0.0


def read_files(run: RunDir) -> RunFiles:
    """Read the files that determine the state of a run.

    Raises:
        NotStarted: the run was neither started nor submitted.
    """
    attempt, submissions = standing_attempt(run), run.submissions()
    if attempt is None:
        if not submissions:
            raise never_started(run)
        return RunFiles(run, None, None, None, submissions)
    return RunFiles(run, attempt, attempt.claim.read(), attempt.result.read(), submissions)


def claimed_attempt(run: RunDir, number: int | None) -> Attempt:
    """Return the attempt of this number, or the newest one that was not refused.

    Raises:
        JobError: there is none.
    """
    attempt = standing_attempt(run) if number is None else run.attempt(number)
    if attempt is None or not attempt.claim.exists():
        if number is not None:
            numbers = [each.n for each in run.attempts()]
            raise JobError(f"{run.uri} has no attempt {number}.\nThere are: {numbers}.")
        state = command_on(run.uri, "status")
        raise JobError(f"{run.uri} has no attempt yet.\n`{state}` shows what the run waits for.")
    return attempt


def never_started(run: RunDir) -> NotStarted:
    return NotStarted(f"{run.uri} was never started.\nStart it with `{UNKNOWN}`.")


def status_by_files(files: RunFiles) -> Status:
    """Return the status of a run without a scheduler.

    Raises:
        NotStarted: it has no attempt.
    """
    if files.attempt is None:
        raise never_started(files.run)
    if files.result is None and (runner := who_runs(files.attempt)) is not None:
        standing = alive(live_state(files.attempt), runner)
    else:
        # Watching the heartbeat takes a while: the run may have ended meanwhile.
        files = with_late_result(files)
        standing = of_result(files.result, over=True) if files.result else _VANISHED
    return Status(files, standing)


_VANISHED = RunState("lost", "vanished", over=True)


def with_late_result(files: RunFiles) -> RunFiles:
    """Return the files with a result that was written since; the same object if there is none."""
    if files.result is not None or files.attempt is None:
        return files
    late = files.attempt.result.read()
    return files if late is None else replace(files, result=late)


def runs_of(storage: Location | str, skip: Callable[[StorageError], None] | None = None) -> list[RunDir]:
    """Return the runs of a storage that were started or submitted, by name.

    Args:
        skip: called with the error of each folder that cannot be listed. A run whose own folders cannot be
            listed is then among the runs. Without it the first error is raised.
    """
    store = open_store(storage)

    def may_be_known(run: RunDir) -> bool:
        try:
            return is_known(run)
        except StorageError:
            if skip is None:
                raise
            return True

    return [run for name in run_names(store, skip) if may_be_known(run := RunDir.newest(storage, name))]


def is_scheduled(run: RunDir) -> bool:
    """Return whether a scheduler has, or had, the run."""
    attempt = run.newest_attempt()
    return bool(run.submissions()) or (attempt is not None and allocation_of(attempt) is not None)


def live_state(attempt: Attempt) -> str:
    """Return the state of a running attempt by its events: waiting, staging or running."""
    state = "waiting"
    for event in events_of_attempt(attempt):
        if event["kind"] == "stage":
            state = "waiting" if event["phase"] == "ready" else "staging"
        elif event["kind"] in ("group_started", "checkpoint"):
            state = "running"
        elif event["kind"] == "restarting":
            state = "waiting"
    return state
