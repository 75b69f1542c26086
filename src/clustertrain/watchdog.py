"""Notices a rank that no longer gets on: dumps its stacks and ends it, so that Ray restarts the group.

Ray itself notices a stopped worker only after its health-check timeout and torch after the collective's; a
limit for each phase is both quicker and free of false alarms in slow phases (data, compilation, evaluation).
The rank that hangs cannot act when it is stopped by a signal; the others then wait for it in a collective,
and their watchdogs end the group.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping

EXIT_CODE = 86  # seen in logs; says that the watchdog ended the process


class Watchdog:
    """`beat(phase)` restarts the clock of that phase; `limits_s` gives seconds per phase."""

    def __init__(self, limits_s: Mapping[str, float], on_expired: Callable[[str], None]) -> None:
        self._limits_s = limits_s
        self._on_expired = on_expired
        self._beat = ("idle", time.monotonic())
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        self._thread.join()

    def beat(self, phase: str) -> None:
        self._beat = (phase, time.monotonic())

    def _watch(self) -> None:
        while not self._done.wait(0.5):
            phase, since = self._beat
            limit_s = self._limits_s.get(phase)
            if limit_s is not None and time.monotonic() - since > limit_s:
                self._expire(phase, limit_s)

    def _expire(self, phase: str, limit_s: float) -> None:
        text = f"no progress in phase {phase!r} for {limit_s:g} s (failures.watchdog.{phase})"
        print(f"clustertrain: {text}; the stacks of all threads follow", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        self._on_expired(text)
        os._exit(EXIT_CODE)
