"""Who runs an attempt, and whether they still live.

On the same machine a process is known by its pid, its start time and its pid namespace. Of another machine
only the heartbeat is visible, and clocks of two machines need not agree: a heartbeat is alive when it is seen
to change, judged on our own clock.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

from clustertrain.errors import ClusterError
from clustertrain.run_dir import Attempt, RunDir

HEARTBEAT_PERIOD_S = 2.0
_WATCH_S = 3 * HEARTBEAT_PERIOD_S


def this_process() -> dict[str, Any]:
    """What identifies this process among all that share the storage."""
    return {
        "host": _host(),
        "pid": os.getpid(),
        "pid_started_ticks": _started_ticks(os.getpid()),
        "time": time.time(),
    }


def claim_attempt(run: RunDir, **fields: Any) -> Attempt:
    """The next attempt of a run, ours alone.

    Raises:
        ClusterError: another process claimed it at the same moment.
    """
    newest = run.newest_attempt()
    attempt = run.attempt(newest.n + 1 if newest else 1)
    claim = json.dumps({**this_process(), **fields}, indent=1).encode()
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
        if record.get("host") == _host() and _lives(record):
            return f"pid {record['pid']} on this machine"
    if claim.get("host") in (None, _host()):
        return None
    return _watched(attempt, heartbeat, claim, watch_s)


def _watched(attempt: Attempt, before: dict[str, Any], claim: dict[str, Any], watch_s: float) -> str | None:
    ends = time.monotonic() + watch_s
    while time.monotonic() < ends:
        time.sleep(min(0.5, watch_s / 4))
        if (attempt.read("heartbeat.json") or {}).get("counter") != before.get("counter"):
            return f"pid {claim.get('pid')} on {str(claim.get('host')).split('/', maxsplit=1)[0]}"
    return None


def _host() -> str:
    """This machine; a container with its own pids counts as another one, since its pids mean nothing here."""
    return f"{socket.gethostname()}/{Path('/proc/self/ns/pid').readlink().name}"


def _started_ticks(pid: int) -> int | None:
    """Field 22 of /proc/<pid>/stat, another one when a pid is used again; None where none lives."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


def _lives(record: dict[str, Any]) -> bool:
    started = _started_ticks(int(record["pid"]))
    return started is not None and started == record.get("pid_started_ticks")


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
            self._attempt.write("heartbeat.json", {**this_process(), "counter": counter})
            if self._ended.wait(HEARTBEAT_PERIOD_S):
                return
