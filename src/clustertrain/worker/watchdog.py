"""The watchdog of a rank: it ends the process after a time without progress.

Before that it writes the rank's stacks; then the driver starts the group again.

Ray detects a stopped worker only after its health-check timeout, torch only after the timeout of the
collective. A limit for each phase is faster, and gives no false alarms in slow phases (data, compilation,
evaluation). A rank that is stopped by a signal cannot end itself; the other ranks wait for it in a
collective, and their watchdogs end the group.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from clustertrain.worker.stacks import Stacks
from clustertrain.worker.step_limit import StepLimit

EXIT_CODE = 86  # in logs it shows that the watchdog ended the process
_LOOK_EVERY_S = 0.5
_MOST_BETWEEN_LOOKS_S = 2.0  # for longer, the whole process was stopped: SLURM suspends jobs
_QUIET_S = 10.0  # after this time without progress, a rank checks whether another rank has expired
_STEPS = ("first_step", "step")
_REPORT_S = (
    10.0  # maximum for the last words to the log and to the storage, which may be full, or answer nothing
)


class _Beat(NamedTuple):
    phase: str
    at_s: float


class Grace(NamedTuple):
    """How long a step may last after a request to stop, and whether there was one."""

    seconds: float
    is_requested: Callable[[], bool]


class WatchdogThread:
    """`beat(phase)` restarts the timer of that phase.

    Args:
        limits_s: the limit of each phase in seconds.
        on_expired: gets the text of the message.
        explain: what the phase waits for, in one line; added to the text.
        steps: learns the limit of the phase "usual_step" from the time between its beats.
        grace: of a step after a request to stop; longer, where a step before it has taken half as long.
    """

    def __init__(
        self,
        limits_s: Mapping[str, float],
        on_expired: Callable[[str], None],
        stacks: Stacks,
        *,
        explain: Callable[[], str] | None = None,
        steps: StepLimit | None = None,
        grace: Grace | None = None,
    ) -> None:
        self._limits_s = limits_s
        self._on_expired = on_expired
        self._stacks = stacks
        self._explain = explain
        self._steps, self._grace, self._longest_s = steps, grace, 0.0
        self._beat = _Beat("idle", time.monotonic())
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> WatchdogThread:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        self._thread.join()

    def beat(self, phase: str) -> None:
        before, now_s = self._beat, time.monotonic()
        if self._steps is not None and before.phase == phase == "usual_step":
            self._steps.add(now_s - before.at_s)
        if before.phase == phase:
            self._longest_s = max(self._longest_s, now_s - before.at_s)
        self._beat = _Beat(phase, now_s)

    def _watch(self) -> None:
        beat, quiet_s, stopping_s, looked_s = self._beat, 0.0, 0.0, time.monotonic()
        while not self._done.wait(_LOOK_EVERY_S):
            before, beat, now_s = beat, self._beat, time.monotonic()
            ran_s, looked_s = min(now_s - looked_s, _MOST_BETWEEN_LOOKS_S), now_s
            quiet_s = min(now_s - beat.at_s, ran_s + (quiet_s if beat is before else 0.0))
            self._look(beat.phase, quiet_s)
            if self._grace is not None and self._grace.is_requested():
                stopping_s += ran_s
                self._look_at_stop(self._grace.seconds, beat.phase, min(quiet_s, stopping_s))
        self._stacks.look(False)

    def _look(self, phase: str, quiet_s: float) -> None:
        learnt = self._steps if phase == "usual_step" else None
        limit_s = self._limits_s.get(phase) if learnt is None else learnt.limit_s
        self._stacks.look(limit_s is not None and quiet_s > min(_QUIET_S, limit_s / 2))
        if limit_s is not None and quiet_s > limit_s:
            name = phase.removeprefix("usual_")
            why, other = ("", "") if learnt is None else (f": {learnt.why}", " sets another")
            text = f"no progress in phase {name!r} for {limit_s:g} s{why}"
            self._expire(f"{text} (failures.watchdog.{name}{other})")

    def _look_at_stop(self, grace_s: float, phase: str, quiet_s: float) -> None:
        limit_s = max(grace_s, 2 * self._longest_s)
        if phase in _STEPS and quiet_s > limit_s:
            after = f"for {limit_s:g} s after the request to stop (failures.grace)"
            self._expire(f"no progress in phase {phase!r} {after}", of_all=False)

    def _expire(self, text: str, *, of_all: bool = True) -> None:
        """End this process; `of_all`: after the other ranks have written their stacks, too."""
        parts = [text]
        if (explain := self._explain) is not None:
            _within(_REPORT_S, lambda: parts.append(explain()))
        text = ": ".join(parts)
        _within(_REPORT_S, lambda: self._log(text))
        _within(_REPORT_S, lambda: self._report(text, of_all))
        os._exit(EXIT_CODE)

    def _log(self, text: str) -> None:
        print(f"clustertrain: {text}", file=sys.stderr, flush=True)
        self._stacks.log("the watchdog ends this rank")

    def _report(self, text: str, of_all: bool) -> None:
        self._on_expired(text)
        if of_all:
            self._stacks.share()


def _within(seconds: float, function: Callable[[], None]) -> None:
    """Call the function in a thread, and wait for at most this time."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    thread.join(seconds)
