"""The ledger of a run, from the files of all its attempts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from clustertrain.observe.ledger.attempt_files import (
    AttemptFiles,
    OneStart,
    gpus_per_rank,
    of_kind,
    read_attempt,
)
from clustertrain.observe.ledger.book import CATEGORIES, Booking, Ledger, Phase, summed
from clustertrain.observe.ledger.start import StartBooks, TimeBudget, step_s
from clustertrain.run_files.claims import committed_step
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.job_diff import changed_nothing
from clustertrain.run_files.records.scheduler import SchedulerJob

_SCRIPT = "a script counts its own steps: all its time from its start to its end is booked as steps"
_NO_QUEUE = "the time in the queue is unknown: the storage has no record of the submission"


def ledger_of(run: RunDir, *, alive: bool = False, now: float | None = None) -> Ledger:
    """Return the ledger of a generation of a run.

    Args:
        alive: a process runs it, or it is in a queue: the books then end now. Otherwise they end with the
            result of the newest attempt, or with its last sign of life.
        now: in seconds since 1970; by default the time of this machine.
    """
    now = time.time() if now is None else now
    notes: dict[str, None] = {}
    attempts = [found for each in run.attempts() if (found := read_attempt(each, notes)) is not None]
    books = _Books(notes, run.submissions())
    for before, files, later in zip([None, *attempts], attempts, [*attempts[1:], None], strict=False):
        books.add_wait(before, files)
        is_alive = alive and later is None and files.result is None
        ends = files.result.ended_at if files.result is not None else now if is_alive else files.last_sign
        if later is not None:
            ends = min(ends, later.claim.time)
        books.add_attempt(files, ends, is_alive=is_alive)
    last = attempts[-1] if attempts else None
    if alive and (last is None or last.result is not None):
        books.add_queue(last, now)
    elif not alive and last is not None:
        books.lose_unsaved(last)
    gpus = gpus_per_rank([group for files in attempts for group in files.groups])
    return Ledger(tuple(books.phases), "GPU" if gpus else "CPU", max(1, gpus), tuple(notes))


class _Books:
    """The phases so far; each begins where the one before ends."""

    def __init__(self, notes: dict[str, None], submissions: Sequence[SchedulerJob]) -> None:
        self.phases: list[Phase] = []
        self._notes, self._submissions = notes, submissions
        self._usual_step_s: float | None = None
        self._reached, self._redone_for = 0, ""  # the last finished step of all starts; why it was lost
        self._again = ("", "")  # category and cause of the next start of the workers
        self._booked_until: float | None = None  # even where an attempt has no phase

    def _end(self, default: float) -> float:
        return default if self._booked_until is None else self._booked_until

    def _add(self, phase: Phase) -> None:
        self._booked_until = max(phase.end, self._end(phase.end))
        if phase.end > phase.start:
            self.phases.append(phase)

    def _wait(self, until: float, category: str, cause: str, since: float | None = None) -> None:
        """Book time without ranks, from the end of the books, and not before `since`."""
        start = self._end(until) if since is None else max(since, self._end(since))
        self._add(Phase(start, until, 0, tuple(TimeBudget(until - start).rest(category, cause))))

    def add_wait(self, before: AttemptFiles | None, files: AttemptFiles) -> None:
        """Book the time before an attempt: nobody had started it, then its job was in the queue."""
        allocation, claimed = files.claim.allocation, files.claim.time
        earlier = before.claim.allocation if before is not None else None
        if allocation is None:
            self._wait(claimed, "idle", before.end if before is not None else "")
        elif before is not None and earlier is not None and earlier.is_same_job(allocation):
            lost_node = before.result is not None and before.result.cause == "node_fail"
            self._wait(claimed, "lost_node" if lost_node else "queue", f"again, because {before.end}")
        else:
            times = [each.time for each in self._submissions if each.job_id == allocation.job_id]
            if not times:
                self._notes[_NO_QUEUE] = None
            job = f"{allocation.scheduler} job {allocation.job_id}"
            self._queue(before, min([*times, claimed]), claimed, job)

    def add_queue(self, last: AttemptFiles | None, now: float) -> None:
        """Book the time of a job that waits for its first or next start."""
        waiting = [each for each in self._submissions if each.time > self._end(0.0)]
        if waiting:
            self._queue(last, waiting[0].time, now, f"{waiting[0].scheduler} job {waiting[0].job_id}")
        elif last is not None:
            self._wait(now, "queue", f"again, because {last.end}")

    def _queue(self, before: AttemptFiles | None, submitted: float, until: float, job: str) -> None:
        if before is not None:
            self._wait(submitted, "idle", before.end)
        self._wait(until, "queue", job, submitted)

    def add_attempt(self, files: AttemptFiles, ends: float, *, is_alive: bool) -> None:
        """Book an attempt from its claim, or from the end of the phase before, to its end."""
        claimed, groups = files.claim.time, files.groups
        if files.changes is not None and files.changes.starts_over and not changed_nothing(files.attempt):
            self._lose(float("inf"), "the run started over with a changed job")
            self._reached = 0
        begins = max(claimed, self._end(claimed))
        if files.of_script:
            self._notes[_SCRIPT] = None
        bounds = _ascending([begins, *(group.claimed for group in groups)], max(begins, ends))
        workers = TimeBudget(bounds[1] - begins)
        ready = bounds[1] if files.ray_started is None else files.ray_started
        has_ray = files.ray_started is not None or not groups
        workers.take("start", ready - begins, "Ray" if has_ray else "driver")
        held = tuple(workers.rest("start", "processes of the workers"))
        self._add(Phase(begins, bounds[1], files.claim.world_size, held))
        self._again = ("start", "process group")
        for group, later, until in zip(groups, [*groups[1:], None], bounds[2:], strict=False):
            self._add_start(files, group, later, until, is_alive=is_alive)

    def _add_start(
        self, files: AttemptFiles, group: OneStart, later: OneStart | None, until: float, *, is_alive: bool
    ) -> None:
        failure, outcome = group.failure, group.outcome
        stops, why = outcome.train_ended if outcome is not None else until, files.end
        if failure is not None:
            stops, why = min(stops, failure["time"]), str(failure.get("text") or "a failure").splitlines()[0]
        elif later is not None:
            why = "the driver was killed" if outcome is None else "a start with another number of workers"
        trains = group.started["time"] if group.started is not None else stops
        claimed, trains, stops, _ = _ascending([self._end(group.claimed), trains, stops], until)
        failed = outcome is None and (failure is not None or later is not None or not is_alive)
        after = "end" if later is None else "lost_node" if _lost_a_node(group, later) else "restart"
        self._usual_step_s = step_s(group.lines) or self._usual_step_s
        start = StartBooks(
            group, trains, stops, self._usual_step_s, self._reached, self._redone_for, failed, after, why
        )
        staged = {event.get("name"): event.get("seconds", 0.0) for event in of_kind(group.events, "stage")}
        ready = TimeBudget(trains - claimed)
        ready.take("staging", sum(staged.values()), "data sets")  # each event has those since its beginning
        held = TimeBudget(stops - trains).rest("steps") if files.of_script else start.training()
        booked = summed([*ready.rest(*self._again), *held, *TimeBudget(until - stops).rest(after, why)])
        ranks = (group.plan or files.claim).world_size
        self._add(Phase(claimed, until, ranks, booked))
        self._reached = max(self._reached, group.reached)
        self._redone_for, self._again = why, (after, why)

    def lose_unsaved(self, last: AttemptFiles) -> None:
        """Book the steps after the newest checkpoint as lost, if the run is over before its end."""
        saves_itself = any(group.plan is not None and group.plan.of_script for group in last.groups)
        is_done = last.result is not None and last.result.state == "done"
        if saves_itself or is_done or self._usual_step_s is None:
            return
        unsaved = self._reached - committed_step(last.attempt.run)
        self._lose(unsaved * self._usual_step_s, f"not saved: {last.end}")

    def _lose(self, seconds: float, cause: str) -> None:
        """Book productive seconds as lost, the newest first."""
        for n in reversed(range(len(self.phases))):
            kept: list[Booking] = []
            for each in self.phases[n].booked:
                lost_s = max(0.0, min(seconds, each.seconds)) if CATEGORIES[each.category].productive else 0.0
                seconds -= lost_s
                kept += [Booking("lost", lost_s, cause), replace(each, seconds=each.seconds - lost_s)]
            self.phases[n] = replace(self.phases[n], booked=tuple(each for each in kept if each.seconds > 0))


def _ascending(times: Sequence[float], end: float) -> list[float]:
    """Return the times and `end`; each no earlier than the one before and no later than the end."""
    found: list[float] = []
    for each in times:
        found.append(min(end, max(each, found[-1] if found else each)))
    return [*found, end]


def _lost_a_node(group: OneStart, later: OneStart) -> bool:
    """Return whether the node of the rank that failed has no rank in the next start."""
    host = group.failure.get("host") if group.failure is not None else None
    return bool(host) and later.plan is not None and bool(later.plan.hosts) and host not in later.plan.hosts
