"""The state of a run, as `ls` and `status` show it: result.json where it has ended, its traces where not."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clustertrain.claims import who_runs
from clustertrain.errors import JobError
from clustertrain.jobfile import load_job
from clustertrain.observe.joined import curve, events_of_attempt
from clustertrain.result import Result, read_result
from clustertrain.run_dir import Attempt, RunDir, run_names
from clustertrain.storage import Location, open_store


@dataclass(frozen=True)
class Status:
    """One run, at one moment. `last` is the newest record of its curve, None where there is none."""

    run: RunDir
    attempt: Attempt
    state: str
    runner: str | None
    result: Result | None
    last: dict[str, Any] | None
    job_file: Path | None = None

    @property
    def step(self) -> int:
        if self.result is not None:
            return self.result.step
        return int(self.last["step"]) if self.last else 0


def find_run(target: str) -> RunDir:
    """The newest generation of the run that `target` names: a job file, or the folder of a run.

    Raises:
        JobError: there is nothing of that name, or the run was never started.
    """
    path = Path(target)
    if path.is_file():
        job = load_job(path)
        run = RunDir.newest(job.storage.location, job.name)
    elif Location(target).is_s3:
        storage, _, name = target.rstrip("/").rpartition("/")
        run = RunDir.newest(storage, name)
    else:
        run = RunDir.newest(str(path.absolute().parent), path.absolute().name)
    if run.newest_attempt() is None:
        known = run_names(run.store) if path.is_file() else run_names(open_store(target))
        remedy = (
            f"Started so far: {', '.join(known[:8])}."
            if known
            else "Start it with `clustertrain run JOBFILE`."
        )
        raise JobError(f"{target}: there is no run at {run.store.uri(run.name)}.\n{remedy}")
    return run


def status_of(run: RunDir) -> Status:
    """Where the newest attempt of a run stands."""
    attempt = run.newest_attempt()
    if attempt is None:
        raise JobError(f"{run.uri} was never started.\nStart it with `clustertrain run JOBFILE`.")
    records = curve(run)
    result = read_result(attempt)
    runner = None if result else who_runs(attempt)
    state = result.state if result else _live_state(attempt) if runner else "lost"
    return Status(run, attempt, state, runner, result, records[-1] if records else None)


def _live_state(attempt: Attempt) -> str:
    state = "waiting"
    for event in events_of_attempt(attempt):
        if event["kind"] == "stage":
            state = "waiting" if event["phase"] == "ready" else "staging"
        elif event["kind"] in ("group_started", "checkpoint"):
            state = "running"
        elif event["kind"] == "restarting":
            state = "waiting"
    return state


def all_runs(storage: Location | str) -> list[Status]:
    """Every run of a storage that was started, by name."""
    store = open_store(storage)
    runs = (RunDir.newest(storage, name) for name in run_names(store))
    return [status_of(run) for run in runs if run.newest_attempt() is not None]


def request_stop(run: RunDir) -> str:
    """Ask a run to finish its step, save and end; returns who runs it.

    Raises:
        JobError: nobody runs it.
    """
    status = status_of(run)
    if status.runner is None:
        raise JobError(
            f"{run.name} does not run: attempt {status.attempt.n} is {status.state}.\n"
            "There is nothing to stop."
        )
    status.attempt.ask("stop", {"cause": "user", "time": time.time()})
    return status.runner
