"""The ledger of a run, from the files of all its attempts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from clustertrain.checkpoints.manifest import names
from clustertrain.errors import JobError, StorageError
from clustertrain.ledger.attempt_files import AttemptFiles, GroupFiles, read_attempt
from clustertrain.ledger.book import CATEGORIES, Booking, Ledger, Phase
from clustertrain.ledger.start import Record, Start, Stretch, booked, number, step_s
from clustertrain.run.folder import RunDir
from clustertrain.run.job_diff import was_refused
from clustertrain.run.recorded_job import is_of_script
from clustertrain.run.records import SchedulerJob

_SCRIPT = "a script counts its own steps: all its time from its start to its end is booked as steps"
_NO_QUEUE = "the time in the queue is unknown: the storage has no record of the submission"


def ledger_of(run: RunDir, *, alive: bool = False, now: float | None = None) -> Ledger:
    """The ledger of a generation of a run.

    Args:
        alive: a process runs it, or it is in a queue: the books then end now. Otherwise they end with the
            result of the newest attempt, or with its last sign of life.
        now: in seconds since 1970; by default the time of this machine.
    """
    notes: dict[str, None] = {}
    attempts = [found for each in run.attempts() if (found := read_attempt(each, notes)) is not None]
    books = _Books(notes, run.submissions())
    for n, files in enumerate(attempts):
        books.add_wait(files, attempts[n - 1] if n else None)
        later = attempts[n + 1].claim.time if n + 1 < len(attempts) else None
        ends = files.result.ended_at if files.result is not None else files.last_sign
        if later is not None:
            ends = min(ends, later)
        elif alive and files.result is None:
            ends = time.time() if now is None else now
        books.add_attempt(files, ends, is_alive=alive and later is None and files.result is None)
    last = attempts[-1] if attempts else None
    if alive and (last is None or last.result is not None):
        books.add_queue(last, time.time() if now is None else now)
    elif not alive and last is not None:
        books.lose_unsaved(last)
    gpus = max((files.gpus_per_rank for files in attempts), default=0)
    return Ledger(tuple(books.phases), "GPU" if gpus else "CPU", max(1, gpus), tuple(notes))


class _Books:
    """The phases so far; each begins where the one before ends."""

    def __init__(self, notes: dict[str, None], submissions: Sequence[SchedulerJob]) -> None:
        self.phases: list[Phase] = []
        self._notes, self._submissions = notes, submissions
        self._usual_step_s: float | None = None
        self._reached, self._broken_off = 0, ""  # the last finished step of all starts, and why it is redone

    def _end(self, default: float) -> float:
        return self.phases[-1].end if self.phases else default

    def _add(self, phase: Phase) -> None:
        if phase.end > phase.start:
            self.phases.append(phase)

    def _add_waiting(self, start: float, end: float, category: str, cause: str) -> float:
        """Time without ranks; returns its end, which is no earlier than its start."""
        held = Stretch(end - start).rest(category, cause)
        self._add(Phase(start, max(start, end), 0, None, 0, tuple(held)))
        return max(start, end)

    def add_wait(self, files: AttemptFiles, before: AttemptFiles | None) -> None:
        """The time before an attempt: nobody had started it, then its job was in the queue."""
        allocation, claimed = files.claim.allocation, files.claim.time
        if allocation is None:
            self._add_waiting(self._end(claimed), claimed, "idle", _ended_as(before))
            return
        earlier = before.claim.allocation if before is not None else None
        job = f"{allocation.scheduler} job {allocation.job_id}"
        if earlier is not None and earlier.is_same_job(allocation):
            ended = before.result if before is not None else None
            category = "lost_node" if ended is not None and ended.cause == "node_fail" else "queue"
            self._add_waiting(self._end(claimed), claimed, category, f"{job} again: {_ended_as(before)}")
            return
        submitted = [each.time for each in self._submissions if each.job_id == allocation.job_id]
        if not submitted:
            self._notes[_NO_QUEUE] = None
        queued = min([*submitted, claimed])
        at = self._add_waiting(self._end(queued), queued, "idle", _ended_as(before))
        self._add_waiting(at, claimed, "queue", job)

    def add_queue(self, last: AttemptFiles | None, now: float) -> None:
        """A job that waits for its first or next start."""
        waiting = [each for each in self._submissions if each.time > self._end(0.0)]
        if waiting:
            job = waiting[0]
            at = self._add_waiting(self._end(job.time), job.time, "idle", _ended_as(last))
            self._add_waiting(at, now, "queue", f"{job.scheduler} job {job.job_id}")
        elif last is not None:
            self._add_waiting(self._end(now), now, "queue", f"again: {_ended_as(last)}")

    def add_attempt(self, files: AttemptFiles, ends: float, *, is_alive: bool) -> None:
        """An attempt from its claim, or from the end of the phase before, to its end."""
        changes, n = files.changes, files.attempt.n
        if changes is not None and changes.starts_over and not was_refused(files.attempt):
            self._lose(float("inf"), "the run started over with a changed job")
            self._reached = 0
        begins = max(files.claim.time, self._end(files.claim.time))
        ends = max(begins, ends)
        if begins > files.claim.time + 1:
            self._notes[f"attempt {n} was claimed before the one before it ended, or clocks differ"] = None
        bounds = _ascending([begins, *(group.claimed for group in files.groups)], ends)
        workers = Stretch(bounds[1] - begins)
        workers.take("start", (bounds[1] if files.ray_started is None else files.ray_started) - begins, "Ray")
        held = tuple(workers.rest("start", "processes of the workers"))
        self._add(Phase(begins, bounds[1], n, None, files.claim.world_size, held))
        of_script = _is_of_script(files)
        if of_script:
            self._notes[_SCRIPT] = None
        again = ("", "")
        for m, group in enumerate(files.groups):
            later = files.groups[m + 1] if m + 1 < len(files.groups) else None
            times = bounds[m + 1], bounds[m + 2]
            start = self._start(files, group, later, times, again, is_alive=is_alive, of_script=of_script)
            ranks = (group.plan.world_size if group.plan is not None else None) or files.claim.world_size
            held = booked(start, self._usual_step_s)
            self._add(Phase(start.claimed, start.until, n, group.number, ranks, held))
            self._usual_step_s = step_s(start.records) or self._usual_step_s
            self._reached = max(self._reached, start.reached)
            self._broken_off = start.why if later is not None else _ended_as(files)
            again = (start.after, start.why)

    def _start(
        self,
        files: AttemptFiles,
        group: GroupFiles,
        later: GroupFiles | None,
        bounds: tuple[float, float],
        again: tuple[str, str],
        *,
        is_alive: bool,
        of_script: bool,
    ) -> Start:
        claimed, until = bounds
        failure, outcome = group.failure, group.outcome
        stopped = outcome.train_ended if outcome is not None else until
        why = _ended_as(files)
        if failure is not None:
            stopped, why = min(stopped, failure["time"]), _first_line(failure)
        elif later is not None:
            why = "a start with another number of workers" if outcome is not None else "the driver was killed"
        has_failed = outcome is None and (failure is not None or later is not None or not is_alive)
        after = "end" if later is None else "lost_node" if _lost_a_node(group, later) else "restart"
        started = group.started["time"] if group.started is not None else stopped
        _, trains, stops, _ = _ascending([claimed, started, stopped], until)
        resumes = group.plan.step if group.plan is not None else 0
        reached = max(group.reached, outcome.step or 0 if outcome is not None else 0)
        logged = [r for r in group.records if r["kind"] in ("train", "eval")]
        reached = max([reached, *(r["step"] for r in logged)])
        return Start(
            claimed,
            trains,
            stops,
            until,
            again=again,
            staging_s=_staging_s(group.stages),
            resumes=resumes,
            reached=max(resumes, reached),
            redoes_to=self._reached,
            redone_for=self._broken_off,
            records=logged,
            saves=group.saves,
            returned=outcome is not None,
            failed=why if has_failed else "",
            hung=failure is not None and failure.get("error") == "watchdog",
            after=after,
            why=why,
            of_script=of_script,
        )

    def lose_unsaved(self, last: AttemptFiles) -> None:
        """Book the steps after the newest checkpoint as lost, if the run is over before its end."""
        if self._usual_step_s is None or (last.result is not None and last.result.state == "done"):
            return
        saved = max((name.step for name in names(last.attempt.run.checkpoints)), default=0)
        self._lose((self._reached - saved) * self._usual_step_s, f"not saved: {_ended_as(last)}")

    def _lose(self, seconds: float, cause: str) -> None:
        """Book productive seconds as lost, the newest first."""
        for n in reversed(range(len(self.phases))):
            kept: list[Booking] = []
            for each in reversed(self.phases[n].booked):
                lost_s = max(0.0, min(seconds, each.seconds)) if CATEGORIES[each.category].productive else 0.0
                seconds -= lost_s
                parts = (Booking("lost", lost_s, cause), replace(each, seconds=each.seconds - lost_s))
                kept += [part for part in parts if part.seconds > 0]
            self.phases[n] = replace(self.phases[n], booked=tuple(reversed(kept)))


def _ascending(times: Sequence[float], end: float) -> list[float]:
    """The times and `end`; each no earlier than the one before and no later than the end."""
    found: list[float] = []
    for each in times:
        found.append(min(end, max(each, found[-1] if found else each)))
    return [*found, end]


def _ended_as(files: AttemptFiles | None) -> str:
    if files is None:
        return ""
    result = files.result
    how = f"ended as {result.state} ({result.cause})" if result is not None else "left no result"
    return f"attempt {files.attempt.n} {how}"


def _first_line(failure: Record) -> str:
    return str(failure.get("text") or "a failure without a text").splitlines()[0]


def _lost_a_node(group: GroupFiles, later: GroupFiles) -> bool:
    """Whether the node of the rank that failed has no rank in the next start."""
    host = group.failure.get("host") if group.failure is not None else None
    return bool(host) and later.plan is not None and bool(later.plan.hosts) and host not in later.plan.hosts


def _staging_s(stages: Sequence[Record]) -> float:
    """Rank 0 fetches one data set after the other; each event has the seconds of its own."""
    return sum({str(event.get("name")): number(event, "seconds") for event in stages}.values())


def _is_of_script(files: AttemptFiles) -> bool:
    if any(group.records for group in files.groups):
        return False  # what a script measures is its own
    try:
        return is_of_script(files.attempt)
    except (JobError, StorageError):  # of a later version, say: then its steps are not known either
        return True
