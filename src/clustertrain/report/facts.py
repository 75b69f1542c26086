"""What a report shows of a run. It is read where the storage is, and may be sent as JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ParamSpec, TypeVar

from clustertrain.errors import JobError, StorageError
from clustertrain.job.identity import hyperparameters, settings
from clustertrain.ledger.book import Ledger
from clustertrain.ledger.of_run import ledger_of
from clustertrain.observe.event_lines import line_of
from clustertrain.observe.status_json import StoredStatus
from clustertrain.report.curves import Curve, curves_of
from clustertrain.report.svg import Span
from clustertrain.run.claims import attempts_that_trained
from clustertrain.run.folder import Attempt, RunDir
from clustertrain.run.job_diff import change_lines
from clustertrain.run.recorded_job import newest_job, trained_jobs
from clustertrain.run.records import Provenance, Repository, Source
from clustertrain.run.streams.history import curve, events_of_attempt
from clustertrain.units import time_text

P = ParamSpec("P")
T = TypeVar("T")
_MOST_EVENTS = 300
_DIFF_CHARACTERS = 250  # for each point of a curve: a page of many runs has less of each
ATTEMPT_COLOUR, _NODE_COLOUR = 0, 2
_FAULTS = ("worker_died", "watchdog", "restarting")


@dataclass(frozen=True)
class Happened:
    """An event: its kind, and its line of text."""

    time: float
    kind: str
    text: str


@dataclass(frozen=True)
class Stretch:
    """Steps that were trained with one state of the code.

    Attributes:
        begins: "the start", or such as "step 161"; of a script "attempt 2".
        changed: the files that changed before, in one line.
        diff_uri: the file with the changes since the commit, if there are any.
    """

    begins: str
    repositories: tuple[Repository, ...]
    changed: str = ""
    diff_uri: str = ""


@dataclass(frozen=True)
class RunFacts:
    """A run, as far as its files can be read.

    Attributes:
        status: as its launcher knows it, which asks more than the files.
        settings: the keys of the job and their values; args as the steps were trained with.
        held: the attempts, and the nodes of each start of the workers.
        changes: of the job between two attempts.
        provenance: of the newest attempt that has one, whose folder is `attempt_uri`.
        diff: the changes since the commit; their beginning, if they are long.
        stretches: the states of the code with which the run was trained, oldest first.
        missing: what could not be read, or was not measured.
    """

    name: str
    uri: str
    status: StoredStatus
    curves: tuple[Curve, ...] = ()
    ledger: Ledger | None = None
    held: tuple[Span, ...] = ()
    events: tuple[Happened, ...] = ()
    events_left_out: int = 0
    settings: Mapping[str, str | int | float] = field(default_factory=dict)
    changes: tuple[str, ...] = ()
    provenance: Provenance | None = None
    attempt_uri: str = ""
    diff: str = ""
    stretches: tuple[Stretch, ...] = ()
    missing: tuple[str, ...] = ()


def facts_of(run: RunDir, status: StoredStatus, most_points: int) -> RunFacts:
    """Read the files of a run. What cannot be read is missing from the facts, and named there."""
    alive = not status.over
    missing: dict[str, None] = {}

    def part(what: str, read: Callable[P, T], *args: P.args, **options: P.kwargs) -> T | None:
        try:
            return read(*args, **options)
        except (JobError, StorageError) as error:
            missing[f"{what}: {str(error).splitlines()[0]}"] = None
            return None

    records = part("metrics", curve, run) or []
    curves, not_finite = curves_of(records, most_points)
    if not records:
        missing["metrics: none were written, so there are no curves and no times of ranks"] = None
    if not_finite:
        missing[f"metrics: {not_finite} values beyond 1e300, or no numbers, are not in the curves"] = None
    events: list[dict[str, Any]] = []
    held: list[Span] = []
    provenance, diff, attempt_uri = None, "", ""
    for attempt in part("attempts", run.attempts) or []:
        if (found := part("provenance", attempt.provenance.read)) is not None:
            provenance, attempt_uri = replace(found, source=Source(found.source.repositories)), attempt.uri
            diff = part("diff", _diff, attempt) or ""
        of_attempt = part("events", events_of_attempt, attempt) or []
        events += of_attempt
        held += part("timeline", _held, attempt, of_attempt, alive=alive) or []
    happened = [Happened(e["time"], e["kind"], line) for e in events if (line := _line(e))]
    job = part("configuration", newest_job, run)
    trained = part("args", trained_jobs, run) or []
    if job is None:
        missing["configuration: there is no job that can be read"] = None
    if provenance is None:
        missing["provenance: commit, packages and machine were not recorded"] = None
    return RunFacts(
        run.name,
        run.uri,
        status,
        curves=curves,
        ledger=part("ledger", ledger_of, run, alive=alive),
        held=tuple(held),
        events=tuple(_shown(happened)),
        events_left_out=max(0, len(happened) - _MOST_EVENTS),
        settings=settings(job) | hyperparameters(*trained) if job is not None else {},
        changes=tuple(part("changes", change_lines, run) or ()),
        provenance=provenance,
        attempt_uri=attempt_uri,
        diff=diff[: most_points * _DIFF_CHARACTERS],
        stretches=tuple(part("code", _stretches, run) or ()),
        missing=tuple(missing),
    )


def _line(event: Mapping[str, Any]) -> str | None:
    return (
        str(event.get("text") or "a worker failed")
        if event["kind"] == "worker_died"
        else line_of(dict(event))
    )


def _shown(happened: Sequence[Happened]) -> list[Happened]:
    """All events if they are not too many; otherwise the newest faults, and the newest of the others."""
    half = _MOST_EVENTS // 2
    faults = [each for each in happened if each.kind in _FAULTS]
    others = [each for each in happened if each.kind not in _FAULTS]
    ranked = [*faults[-half:], *reversed(others), *reversed(faults[:-half])]
    return sorted(ranked[:_MOST_EVENTS], key=lambda each: each.time)


def _held(attempt: Attempt, events: Sequence[Mapping[str, Any]], *, alive: bool) -> list[Span]:
    """The attempt, then the nodes of each start of its workers."""
    if (claim := attempt.claim.read()) is None:
        return []
    result = attempt.result.read()
    last = max([claim.time, *(event["time"] for event in events)])
    end = result.ended_at if result is not None else time.time() if alive else last
    end = max(claim.time, end)
    ended = f"{result.state} ({result.cause})" if result is not None else "no result"
    held = [_span(f"attempt {attempt.n}", claim.time, end, f"attempt {attempt.n}: {ended}", ATTEMPT_COLOUR)]
    claims = [(each, one.time) for each in attempt.restarts() if (one := each.claim.read()) is not None]
    for n, (restart, start) in enumerate(claims):
        until = claims[n + 1][1] if n + 1 < len(claims) else end
        deaths = (e["time"] for e in events if e["kind"] in _FAULTS and start <= e["time"] < until)
        stop = max(start, next(deaths, until))
        plan = restart.plan.read()
        for host in dict.fromkeys(plan.hosts if plan is not None and plan.hosts else ("workers",)):
            text = f"{host}: start {restart.number} of attempt {attempt.n}"
            held.append(_span(host, start, stop, text, _NODE_COLOUR))
    return held


def _span(lane: str, start: float, end: float, text: str, colour: int) -> Span:
    return Span(lane, start, end, f"{text}, {time_text(end - start)}", colour)


def _stretches(run: RunDir) -> list[Stretch]:
    found: list[Stretch] = []
    state: list[tuple[str, str | None, bool]] = []
    for attempt, claim in attempts_that_trained(run):
        if (known := attempt.provenance.read()) is None:
            continue
        repositories, change = known.source.repositories, known.code_change
        before, state = state, [(each.folder, each.commit, each.changed) for each in repositories]
        if found and change is None and state == before:
            continue
        since = f"step {claim.resumes + 1}" if claim.files is None else f"attempt {attempt.n}"
        has_diff = any(each.changed for each in repositories)
        found.append(
            Stretch(
                since if found else "the start",
                repositories,
                change.text if change is not None else "",
                attempt.run.store.uri(attempt.diff_key) if has_diff else "",
            )
        )
    return found


def _diff(attempt: Attempt) -> str:
    return (attempt.run.store.read_or_none(attempt.diff_key) or b"").decode(errors="replace")
