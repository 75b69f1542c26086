"""Who runs an attempt, and whether they still live.

On the same machine a process is known by its pid and its start (processes.py). Of another machine only the
heartbeat is visible, and clocks of two machines need not agree: a heartbeat is alive when it is seen to
change, judged on our own clock.
"""

from __future__ import annotations

import json
import threading
import time
from typing import Any

from clustertrain.errors import ClusterError
from clustertrain.processes import is_gone, is_here, this_process
from clustertrain.run_dir import Attempt, RunDir

HEARTBEAT_PERIOD_S = 2.0
_WATCH_S = 3 * HEARTBEAT_PERIOD_S


def claim_attempt(run: RunDir, **fields: Any) -> Attempt:
    """The next attempt of a run, ours alone.

    Raises:
        ClusterError: another process claimed it at the same moment.
    """
    newest = run.newest_attempt()
    attempt = run.attempt(newest.n + 1 if newest else 1)
    claim = json.dumps({**this_process(), "time": time.time(), **fields}, indent=1).encode()
    if not run.store.create_exclusive(f"{attempt.key}/claim.json", claim):
        raise ClusterError(
            f"Attempt {attempt.n} of {run.path} was claimed by another start at the same moment.\n"
            "That one runs now; `clustertrain status` shows it."
        )
    return attempt


def who_runs(attempt: Attempt, *, watch_s: float = _WATCH_S) -> str | None:
    """The process that runs an attempt, in words; None when nobody does.

    Looks at the heartbeat for `watch_s` seconds where the process is on another machine.
    """
    if attempt.read("result.json") is not None:
        return None
    claim = attempt.read("claim.json") or {}
    heartbeat = attempt.read("heartbeat.json") or {}
    for record in (claim, heartbeat):
        if is_here(record) and not is_gone(record):
            return f"pid {record['pid']} on this machine"
    if not claim or is_here(claim):
        return None
    return _watched(attempt, heartbeat, claim, watch_s)


def _watched(attempt: Attempt, before: dict[str, Any], claim: dict[str, Any], watch_s: float) -> str | None:
    ends = time.monotonic() + watch_s
    while time.monotonic() < ends:
        time.sleep(min(0.5, watch_s / 4))
        if (attempt.read("heartbeat.json") or {}).get("counter") != before.get("counter"):
            return f"pid {claim.get('pid')} on {str(claim.get('host')).split('/', maxsplit=1)[0]}"
    return None


class Heartbeat:
    """Writes heartbeat.json every two seconds, for as long as this process lives."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()

    def _beat(self) -> None:
        counter = 0
        while True:
            counter += 1
            self._attempt.write("heartbeat.json", {**this_process(), "time": time.time(), "counter": counter})
            if self._ended.wait(HEARTBEAT_PERIOD_S):
                return
