"""What a report shows of a run. It is read where the storage is, and may be sent as JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from clustertrain.errors import JobError, StorageError
from clustertrain.job.identity import hyperparameters, settings
from clustertrain.observe.ledger.book import Ledger
from clustertrain.observe.ledger.of_run import ledger_of
from clustertrain.observe.report.curves import StepCurve, curves_of
from clustertrain.observe.status_json import StoredStatus
from clustertrain.run_files.folder.run_dir import Attempt, RunDir
from clustertrain.run_files.recorded_job import newest_job, trained_jobs
from clustertrain.run_files.records.provenance import Provenance
from clustertrain.run_files.streams.history import curve, events_of_attempt

T = TypeVar("T")


@dataclass(frozen=True)
class AttemptFacts:
    """An attempt: its time, how it ended, and why its workers failed, the oldest first."""

    n: int
    began: float
    ended: float
    how: str
    failures: tuple[str, ...]


@dataclass(frozen=True)
class RunFacts:
    """A run, as far as its files can be read.

    Attributes:
        status: as its launcher knows it, which asks more than the files.
        compared: the keys of the job, the commits and the versions; args as the steps were trained with.
        missing: what could not be read, or was not measured.
    """

    name: str
    status: StoredStatus
    curves: tuple[StepCurve, ...] = ()
    ledger: Ledger | None = None
    attempts: tuple[AttemptFacts, ...] = ()
    compared: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()


def facts_of(run: RunDir, status: StoredStatus, most_points: int) -> RunFacts:
    """Read the files of a run. What cannot be read is missing from the facts, and named there."""
    alive = not status.over
    missing: dict[str, None] = {}

    def part(what: str, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except (JobError, StorageError) as error:
            missing[f"{what}: {str(error).splitlines()[0]}"] = None
            return None

    records = part("metrics", partial(curve, run)) or []
    curves, not_finite = curves_of(records, most_points)
    if not records:
        missing["metrics: none were written, so there are no curves"] = None
    if not_finite:
        missing[f"metrics: {not_finite} values beyond 1e300, or no numbers, are not in the curves"] = None
    compared: dict[str, str] = {}
    if (job := part("configuration", partial(newest_job, run))) is not None:
        trained = hyperparameters(*part("args", partial(trained_jobs, run)) or [])
        compared = {key: str(value) for key, value in (settings(job) | trained).items() if key != "name"}
    attempts = []
    for attempt in part("attempts", run.attempts) or []:
        if (held := part("attempt", partial(_held, attempt, alive=alive))) is not None:
            attempts.append(held)
        if (known := part("provenance", attempt.provenance.read)) is not None:
            compared |= _code(known)
    book = part("ledger", partial(ledger_of, run, alive=alive))
    return RunFacts(run.name, status, curves, book, tuple(attempts), compared, tuple(missing))


def _held(attempt: Attempt, *, alive: bool) -> AttemptFacts | None:
    if (claim := attempt.claim.read()) is None:
        return None
    result, events = attempt.result.read(), events_of_attempt(attempt)
    last = time.time() if alive else max([claim.time, *(event["time"] for event in events)])
    failures = (str(e.get("text") or "a worker failed") for e in events if e["kind"] == "worker_died")
    return AttemptFacts(
        attempt.n,
        claim.time,
        result.ended_at if result is not None else last,
        f"{result.state} ({result.cause})" if result is not None else "no result",
        tuple(text.splitlines()[0] for text in failures),
    )


def _code(known: Provenance) -> dict[str, str]:
    commits = (
        f"{each.commit or 'no commit'}{' with changes' * each.changed}" for each in known.source.repositories
    )
    versions = dict(package.split("==", 1) for package in known.packages if "==" in package)
    return {"commit": "; ".join(commits), "python": known.python, "host": known.host, **versions}
