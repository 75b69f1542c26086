"""The answer of `explain`: the first cause of a failure, what proves it, and what to change."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace

from clustertrain.observe.explain.catalogue import UNKNOWN, KnownError, Remedy, RunKind, by_name
from clustertrain.observe.explain.evidence import StartEvidence
from clustertrain.observe.explain.first_cause import EvidenceText, FoundError, first_cause, hits_of
from clustertrain.observe.explain.stacks import RanksAtPlace, of_script, ranks_text, stacks_now
from clustertrain.observe.status import Row, claimed_attempt
from clustertrain.run_files.command_line import command_on
from clustertrain.run_files.folder.run_dir import Attempt, RunDir
from clustertrain.run_files.recorded_job import is_of_script
from clustertrain.run_files.records.result import Failure
from clustertrain.run_files.streams.rank_log import OUTPUT_ENDS

_ADVICE = "If it makes no step, look at the first group: the others wait for it. Ask again to compare."
_EVIDENCE, _OF_CAUSE = 10, 7  # lines in all, and of the cause itself
_REQUESTED = ("user", "interrupt", "terminated", "interrupted_twice", "cancelled")  # causes of an end
_UNEXPLAINED = ("error", "same_error_twice", "retries_used_up", "driver_died")  # of the state "failed"
_LONGEST_MESSAGE = 200  # of an exception, in characters
_PRINTED = "  | "  # before each line in the failure of a script that ended without an exception
_WARNING = re.compile(r"\W*warning\b", re.I)  # of an error that the script has handled
_SUMMARY_RANKS = 32  # whose logs a command reads that only adds three lines


@dataclass(frozen=True)
class Explanation:
    """Why a run failed, or where a running one is.

    Attributes:
        failure: its name in docs/reference/errors.md, "own_exception" for another exception that a line of
            the user's own code raised, "own_exit" for a script that ended itself with an exit code,
            "unknown" for any other, or empty if the run has not failed.
        cause: the first cause in one sentence.
        proof: the line that shows it, and where it is.
        change: what to change.
        error: the whole message at the end of the run.
        rank, host: where it happened, or null and empty.
        evidence: at most ten lines, each with file, rank, time of day and text.
        followed: the ranks whose errors only follow from it.
        earlier: failures of earlier starts of the workers in this attempt.
        stacks: of a running run: the groups of ranks at one place, the outlier first.
    """

    failure: str
    cause: str
    proof: str = ""
    change: str = ""
    error: str = ""
    rank: int | None = None
    host: str = ""
    evidence: tuple[str, ...] = ()
    followed: tuple[int, ...] = ()
    earlier: tuple[str, ...] = ()
    stacks: tuple[RanksAtPlace, ...] = ()

    def first_rows(self) -> list[Row]:
        """Return the cause, what proves it, and what to change."""
        rows = (("cause", self.cause), ("proof", self.proof), ("change", self.change))
        return [(name, text) for name, text in rows if text]

    def lines(self) -> Iterator[str]:
        """Yield the lines of the whole explanation, for people."""
        yield from map(line_of_row, self.first_rows())
        for n, line in enumerate(self.error.splitlines()):
            yield f"{'' if n else 'error:':<8}{line}"
        if self.followed:
            yield f"{'after:':<8}only followed from it: the errors of {ranks_text(self.followed)}"
        yield from (f"{'before:':<8}{text}" for text in self.earlier)
        if self.evidence:
            yield "evidence:"
            yield from (f"  {line}" for line in self.evidence)
        for group in self.stacks:
            yield from group.lines()


def line_of_row(row: Row) -> str:
    """Return a row as a line of `explain`."""
    return f"{row[0] + ':':<8}{row[1]}"


def explain(run: RunDir, number: int | None = None) -> Explanation:
    """Explain the newest attempt of a run, or the attempt of this number.

    A running attempt shows its stacks.

    Raises:
        JobError: there is no such attempt.
    """
    attempt = claimed_attempt(run, number)
    start = StartEvidence.newest(attempt)
    if start.is_running:
        if not start.pids:
            return Explanation("", f"none yet: {run.name} waits for its workers")
        if is_of_script(attempt):
            return Explanation("", f"none: {run.name} is running", change=of_script(run.uri))
        groups = stacks_now(start)
        first = " at ".join(line.strip() for line in [*groups[0].lines()][:2])
        return Explanation("", f"none yet: {run.name} is running; {first}", change=_ADVICE, stacks=groups)
    if start.result is not None and start.result.state == "done":
        return Explanation("", f"none: {run.name} is done")
    if start.result is not None and start.result.cause in _REQUESTED:
        cause = f"none: {run.name} was stopped on request ({start.result.cause})"
        return Explanation("", cause, error=start.result.text)
    ended, hits = start.result or start.failure, _hits(start, len(start.hosts))
    return replace(
        _explained(start, _decisive(start, hits), hits),
        error=ended.text if ended is not None else "",
        earlier=_earlier(attempt, start),
    )


def summary(attempt: Attempt) -> list[Row]:
    """Return the first three rows for an attempt that failed, or none if its message says the same.

    The messages of clustertrain itself have a remedy. An attempt without a result is lost.
    """
    result = attempt.result.read()
    if result is not None and (result.state != "failed" or result.cause not in _UNEXPLAINED):
        return []
    start = StartEvidence.newest(attempt)
    hits = _hits(start, _SUMMARY_RANKS)
    hit = _decisive(start, hits)
    if result is not None:
        if hit is None or hit.entry.told:
            return []
        if hit.entry is UNKNOWN and (hit.source.order == 0 or hit.is_told_in(result.text)):
            return []
    return _explained(start, hit, hits).first_rows()


def _hits(start: StartEvidence, most_ranks: int) -> list[FoundError]:
    """Return the known lines of everything that may have the first cause.

    Of many ranks the one that the failure names is read first.
    """
    ranks = sorted(start.hosts, key=lambda rank: (start.failure is None or rank != start.failure.rank, rank))
    logs = map(start.rank_log, ranks[:most_ranks])
    sources = (*start.records(), *start.events(), *logs, *start.other_logs())
    return [hit for source in sources for hit in hits_of(source)]


def _decisive(start: StartEvidence, hits: list[FoundError]) -> FoundError | None:
    """Return the first cause.

    If a rank raised by itself, only its own lines count. If no entry knows its exception, the cause stays
    unknown: another line of its log may be of an error that the code has handled.
    """
    failure = start.failure
    if failure is None or failure.error in ("signal", "watchdog"):
        return first_cause(hits)
    own = [hit for hit in hits if hit.source.rank == failure.rank]
    if (ended := _own_exit(next(start.records()), failure.exit_code)) is not None:
        own = [hit for hit in own if not _WARNING.match(hit.line)]
    matched = _matched(start, failure)
    said = matched or first_cause(hit for hit in own if hit.source.order == 0)
    if said is not None and said.entry.kind == "consequence":
        first = first_cause(hits)
        return (
            first if first is not None and first.entry.kind != "consequence" else _left(start, hits) or first
        )
    if matched is not None and matched.entry.kind == "cause":
        return matched
    unknown = [hit for hit in own if hit.entry is UNKNOWN] if said is None else []
    raised = next((hit for hit in unknown if hit.is_told_in(failure.text)), None)
    failed = FoundError(UNKNOWN, next(start.records()), 0)
    if said is None and raised is None and failed.recorded:  # its traceback is too long for what is read
        return failed
    return raised or first_cause(unknown or own) or ended or failed


def _matched(start: StartEvidence, failure: Failure) -> FoundError | None:
    """Return what the driver has matched, at its line of the record."""
    entry, record = by_name().get(failure.entry), next(start.records())
    if entry is None:
        return None
    at = (hit.index for hit in hits_of(record) if hit.entry is entry)
    return FoundError(entry, record, next(at, 0))


def _left(start: StartEvidence, hits: list[FoundError]) -> FoundError | None:
    """Return the end of the first rank that ended without an error.

    The others only report that it is gone.
    """
    entry = by_name()["ended_early"]
    for rank in sorted(start.hosts.keys() - {hit.source.rank for hit in hits})[:_SUMMARY_RANKS]:
        log = start.rank_log(rank)
        ends = [n for n, line in enumerate(log.text.split("\n")) if line.endswith(OUTPUT_ENDS)]
        if ends:
            return FoundError(entry, log, ends[-1])
    return None


def _own_exit(failed: EvidenceText, exit_code: int | None) -> FoundError | None:
    """Return the end of a script that ended itself with an exit code, at the last line that it printed."""
    printed = [n for n, line in enumerate(failed.text.split("\n")) if line.startswith(_PRINTED)]
    if exit_code is None or not printed:
        return None
    cause = f"the script ended itself with exit code {exit_code}, without an exception"
    change = (
        "What it last printed is below: look for the line of your code that ends it (sys.exit, os._exit)."
    )
    return FoundError(
        KnownError("own_exit", (), cause, (Remedy(frozenset(), change),), told=True), failed, printed[-1]
    )


def _explained(start: StartEvidence, hit: FoundError | None, hits: list[FoundError]) -> Explanation:
    if hit is None:
        record = next(start.records(), None)
        return Explanation(
            "unknown",
            "unknown: no line of its records and logs looks like an error",
            f"{record.name}: {record.text.partition(chr(10))[0]}" if record is not None else "",
            f"Read the logs: `{command_on(start.attempt.uri, 'logs', '--driver')}`, and `--rank K`.",
        )
    rank, host = hit.source.rank, hit.source.host
    who = "" if rank is None else f"rank {rank}{f' on {host}' if host else ''}"
    name, cause = hit.entry.name, hit.entry.cause
    change = hit.entry.change_for(RunKind.of(start.attempt), host or "NODE")
    if hit.entry is UNKNOWN and hit.own_line:
        name, change = (
            "own_exception",
            f"Correct {hit.own_line}, or what it is given: the traceback is below.",
        )
        cause = f"{who or 'it'} raised {hit.message[:_LONGEST_MESSAGE]} at {hit.own_line} (your own code)"
    else:
        cause = f"{who}: " * bool(who) + cause + f" ({name})" * (hit.entry is not UNKNOWN)
    same = [each for each in hits if (each.entry, each.source.rank) == (hit.entry, rank)]
    log = next((each for each in (hit, *same) if each.source.name.endswith(".log")), hit)
    others = {each.source.rank: each for each in hits if each.entry.kind == "consequence"}
    followed = tuple(sorted(each for each in others if each is not None and each != rank))
    lines = [*log.around[:_OF_CAUSE], *(others[each].shown for each in followed)]
    return Explanation(
        name,
        cause,
        log.shown,
        change.replace(" RUN", f" {shlex.quote(start.attempt.uri)}"),
        rank=rank,
        host=host,
        evidence=tuple(lines[:_EVIDENCE]),
        followed=followed,
    )


def _earlier(attempt: Attempt, start: StartEvidence) -> tuple[str, ...]:
    """Return the first lines of up to three failures before the newest start."""
    failures = [
        r.failure.read() for r in attempt.restarts() if start.restart and r.number < start.restart.number
    ]
    lines = [f"start {f.restart}: {f.text.partition(chr(10))[0]}" for f in failures if f is not None]
    return tuple(dict.fromkeys(lines))[:3]
